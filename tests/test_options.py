"""Choosing a backend, seeing which one runs, and what is installed."""

import sys
import threading

import harness
import jax
import numpy as np
import problems
import pytest

import jax_cudnn_conv as jcc

X, W = np.ones((2, 9, 4), np.float32), np.ones((3, 4, 5), np.float32)


def kernels(backend, *arguments):
    with jcc.options(backend=backend):
        return [str(explanation) for explanation in jcc.explain(jcc.conv, *arguments)]


def program(backend, function, *arguments):
    with jcc.options(backend=backend):
        return jax.jit(function).lower(*arguments).as_text()


def test_xla_is_xla():
    assert "xla" in kernels("xla", X, W)[0]
    text = program("xla", jax.grad(lambda x, w: jcc.conv(x, w).sum(), (0, 1)), X, W)
    assert "custom_call" not in text
    assert "convolution" in text


def test_native_is_native(onednn):
    """Forward and both gradients are calls of the native library, also where the gradient is taken later."""
    assert "onednn" in kernels("native", X, W)[0]
    for backend in ("native", "auto"):
        text = program(backend, jax.value_and_grad(lambda x, w: jcc.conv(x, w).sum(), (0, 1)), X, W)
        assert "stablehlo.convolution" not in text
        for direction in ("fwd", "dgrad", "wgrad"):
            assert f"onednn_{direction}" in text


def test_no_problem_of_the_native_backend_runs_on_a_naive_loop(native_missing):
    """oneDNN's reference kernels are loops: explain shows them, and none is used for these layers."""
    if native_missing:
        pytest.skip(native_missing)
    image, kernel = np.ones((1, 16, 16, 32), np.float32), np.ones((3, 3, 32, 64), np.float32)
    for dtype in ("float32", "bfloat16", "float16"):
        model = jax.grad(lambda x, w: jcc.conv(x, w, strides=2).astype(np.float32).sum(), (0, 1))
        lines = [str(e) for e in jcc.explain(model, image.astype(dtype), kernel.astype(dtype))]
        assert len(lines) == 3  # the gradient's trace holds the forward pass, used or not
        assert not any("ref" in line for line in lines), lines


def test_native_kernels_cover_the_table(native_missing):
    """Of all problems and directions, a few at most are left to XLA for want of a kernel on this CPU."""
    if native_missing:
        pytest.skip(native_missing)
    left = []
    for problem in map(problems.parse, problems.ALL):
        for name in ("conv", "conv_backward_data", "conv_backward_filter"):
            operands = harness.operands(name, problem)
            with jcc.options(backend="native"):  # otherwise a few are left to XLA where that is faster
                lines = [str(e) for e in jcc.explain(harness.function(name, problem), *operands)]
            assert len(lines) == 1
            left += [line for line in lines if "onednn:" not in line]
    assert len(left) <= len(problems.ALL) // 20, "\n".join(left)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((X.astype(np.float64), W.astype(np.float64)), "float64"),
        ((X.astype(np.int32), W.astype(np.int32)), "int32"),
        ((np.ones((2, 4), np.float32), np.ones((4, 5), np.float32)), "axes"),
        ((np.ones((1, 2, 2, 2, 2, 3), np.float32), np.ones((1, 1, 1, 1, 3, 2), np.float32)), "axes"),
    ],
)
def test_native_says_why_not(arguments, reason, onednn):
    """It is an error, not a silent fallback; auto runs the same call, and explain gives the same reason."""
    with jcc.options(backend="native"), pytest.raises(NotImplementedError, match=reason):
        jax.jit(jcc.conv)(*arguments)
    assert reason in kernels("auto", *arguments)[0]
    assert jax.jit(jcc.conv)(*arguments).dtype == arguments[0].dtype


def test_blocks_nest_and_end():
    with jcc.options(backend="xla"):
        with jcc.options(backend="auto"):
            pass
        with pytest.raises(ZeroDivisionError), jcc.options(backend="auto"):
            raise ZeroDivisionError
        assert "asked for" in str(jcc.explain(jcc.conv, X, W)[0])
    assert "asked for" not in str(jcc.explain(jcc.conv, X, W)[0])


def test_another_thread_is_not_affected():
    seen = []
    with jcc.options(backend="xla"):
        thread = threading.Thread(target=lambda: seen.extend(map(str, jcc.explain(jcc.conv, X, W))))
        thread.start()
        thread.join()
    assert len(seen) == 1
    assert "asked for" not in seen[0]


def test_gradients_keep_the_backend_of_their_trace():
    with jcc.options(backend="xla"):
        _, vjp = jax.vjp(jcc.conv, X, W)
    assert "custom_call" not in jax.jit(vjp).lower(np.ones((2, 9, 5), np.float32)).as_text()


def test_environment_sets_the_default():
    code = "import jax_cudnn_conv as jcc; print(*jcc.explain(jcc.conv, [[[1.0]]], [[[1.0]]]))"
    assert "asked for" in harness.python("-c", code, JAX_CUDNN_CONV_BACKEND="xla")
    assert "asked for" not in harness.python("-c", code)


@pytest.mark.parametrize(
    ("choice", "error", "message"),
    [
        ({"autotune": "on"}, ValueError, "autotune must be one of .*'limited'.*; got 'on'"),
        ({"workspace_limit": -1}, ValueError, "workspace_limit must be a number of bytes, 0 or more; got -1"),
        ({"workspace_limit": 2**63}, ValueError, "workspace_limit must be a number of bytes"),
        ({"workspace_limit": 1e9}, TypeError, "workspace_limit must be a number of bytes"),
        ({"workspace_limit": True}, TypeError, "workspace_limit must be a number of bytes"),
        ({"deterministic": 1}, TypeError, "deterministic must be True or False; got 1"),
    ],
)
def test_choices_are_checked(choice, error, message):
    with pytest.raises(error, match=message), jcc.options(**choice):
        pass
    with jcc.options() as now:
        assert now == type(now)()


def test_choices_in_force():
    with jcc.options(autotune="fastest", workspace_limit=np.int64(7)), jcc.options(deterministic=True) as now:
        assert (now.autotune, now.workspace_limit, now.deterministic) == ("fastest", 7, True)
        assert type(now.workspace_limit) is int


@pytest.mark.parametrize(
    "choice", [{"autotune": "limited"}, {"workspace_limit": 1}, {"deterministic": True}, {"backend": "xla"}]
)
def test_choices_are_part_of_the_cache_key(choice):
    """A function that was traced under other choices is traced again, and the first trace is kept."""
    traced = []

    @jax.jit
    def f(x, w):
        traced.append(None)
        return jcc.conv(x, w)

    for _ in range(2):
        f(X, W)
        with jcc.options(**choice):
            f(X, W)
    assert len(traced) == 2


@pytest.mark.parametrize(
    ("variable", "value", "shown"),
    [
        ("AUTOTUNE", "fastest", "autotune='fastest'"),
        ("WORKSPACE_LIMIT", "4096", "workspace_limit=4096"),
        ("DETERMINISTIC", "1", "deterministic=True"),
    ],
)
def test_environment_sets_the_choices_for_gpus(variable, value, shown):
    variable = f"JAX_CUDNN_CONV_{variable}"
    assert shown in harness.python("-m", "jax_cudnn_conv", **{variable: value})
    code = "try:\n  import jax_cudnn_conv\nexcept ValueError as error:\n  print(error)"
    assert harness.python("-c", code, **{variable: "much"}).strip().endswith("got 'much'")


def test_config_is_shown(capsys):
    jcc.show_config()
    shown = capsys.readouterr().out
    for word in (jcc.__version__, jax.__version__, sys.version.split()[0], "oneDNN", "cuDNN"):
        assert word in shown
    assert "oneDNN" in harness.python("-m", "jax_cudnn_conv")


BROKEN = """
import sys, warnings
sys.modules["jax_cudnn_conv._onednn"] = None  # importing it fails from now on
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import child
    child.without_native()
print(*(warning.message for warning in caught if "jax_cudnn_conv" in str(warning.message)), sep="\\n")
"""


def test_without_the_native_library():
    """It imports, warns once with the reason, and computes."""
    output = harness.python("-c", BROKEN)
    assert "not available" in output
    told = [line for line in output.splitlines() if line.startswith("jax_cudnn_conv runs on XLA")]
    assert len(told) == 1, output
    assert "_onednn" in told[0]
