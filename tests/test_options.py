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


def test_native_is_native(native_missing):
    """Forward and both gradients are calls of the native library, also where the gradient is taken later."""
    if native_missing:
        pytest.skip(native_missing)
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
def test_native_says_why_not(arguments, reason, native_missing):
    """It is an error, not a silent fallback; auto runs the same call, and explain gives the same reason."""
    if native_missing:
        pytest.skip(native_missing)
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


def test_config_is_shown(capsys):
    jcc.show_config()
    shown = capsys.readouterr().out
    for word in (jcc.__version__, jax.__version__, sys.version.split()[0], "oneDNN"):
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
