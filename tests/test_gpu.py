"""cuDNN on a real GPU: `pytest --gpu tests/test_gpu.py`. With `--cudnn` a dry run on the double.

Operands are small integers where nothing else is said: every right plan gives the same bits. What could end
the process, or wants its memory for itself, runs in a child: `python test_gpu.py NAME [ARGUMENT...]`.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import sys
import threading
import time

import gpu_on_cpu
import harness
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from jax import lax

import jax_cudnn_conv as jcc
from jax_cudnn_conv import _devices, _targets

GPU = jax.default_backend() == "gpu"
DEVICE = None if GPU else "sm_90"  # for `explain`
DTYPES = ("f32", "f16", "bf16", "f64")


def big(on_gpu, on_double):
    """Sizes that fill a GPU are too much for the double."""
    return on_gpu if GPU else on_double


needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU: its memory, its streams or its size")


@pytest.fixture(scope="session", autouse=True)
def device(request, tmp_path_factory):
    """The GPU that was asked for, and a cache folder of its own."""
    if not (GPU or request.config.getoption("--cudnn")):
        pytest.exit(
            f"JAX runs on {jax.default_backend()}: a GPU and --gpu are wanted, or --cudnn", returncode=3
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_CUDNN_CONV_CACHE_DIR", str(tmp_path_factory.mktemp("plans")))
        yield


def child(name, *arguments, timeout=120, **environment):
    return harness.python(__file__, name, *arguments, timeout=timeout, **environment)


def parse(dtype, text):
    return dataclasses.replace(problems.parse(text), dtype=dtype)


def three_directions(problem, **more):
    """Functions of (x, w, y) by the role of what they compute."""
    names = {"y": "conv", "x": "conv_backward_data", "w": "conv_backward_filter"}

    def call(name, **arrays):
        a, b = harness.ROLES[name][:2]
        return harness.function(name, problem, **more)(arrays[a], arrays[b])

    return {role: functools.partial(call, name) for role, name in names.items()}


def all_three(problem):
    functions = three_directions(problem)
    return lambda x, w, y: {role: f(x=x, w=w, y=y) for role, f in functions.items()}


@pytest.mark.parametrize("text", big(problems.ALL, problems.FEW))
@pytest.mark.parametrize("dtype", DTYPES)
def test_values(dtype, text):
    with jax.default_matmul_precision("highest"):
        harness.check_every_function(parse(dtype, text), "native")


def test_description():
    """The GPU describes itself to cuDNN as the plans of this process assume."""
    gpu = _devices.live(_targets.cudnn())
    assert json.loads(gpu.description)["deviceVer"] == gpu.capability * 10


@pytest.mark.parametrize("text", problems.FEW)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bias_and_relu(dtype, text):
    problem = parse(dtype, text)
    x, w = harness.operands("conv", problem)
    bias = np.arange(problem.o) - problem.o // 2
    conv = harness.function("conv", problem)

    def fused(x, w, b):
        return conv(x, w, bias=b, activation="relu")

    b = jnp.asarray(bias, x.dtype)
    (explanation,) = jcc.explain(fused, x, w, b, device=DEVICE)
    assert explanation.kernel.backend == "cudnn"
    assert explanation.problem.endswith("_bias_relu")
    expected = np.maximum(harness.oracle("conv", problem, x, w).astype(np.float64) + bias, 0)
    harness.assert_equal(jax.jit(fused)(x, w, b), harness.rounded(expected, x.dtype), harness.rerun(problem))


def test_explain(record_property):
    """cuDNN for every convolution of a model with a transposed one, and of its gradient."""
    x, w = jnp.ones((4, 32, 32, 8), jnp.bfloat16), jnp.ones((4, 4, 8, 16), jnp.bfloat16)

    def loss(x, w, b):
        y = jcc.conv(x, w, strides=2, bias=b, activation="relu")
        return jcc.conv_transpose(y, w, strides=2).astype(jnp.float32).sum()

    told = jcc.explain(jax.grad(loss, (0, 1, 2)), x, w, jnp.ones(16, jnp.bfloat16), device=DEVICE)
    record_property("told", "\n".join(map(str, told)))
    assert len(told) >= 5
    assert {e.kernel.backend for e in told} == {"cudnn"}


FIELD_CASES = (  # C22 and C28: what an engine got wrong, or every first choice refused
    *("bf16_n2i4o16_w16k3s2p1,2d2", "n1i1o32_d8k3s2p1_h8k3s2p1_w6k3s2p1", "n2i3o4_h4k3p2d2_w3k3p2d2"),
    *(f"{dtype}_g16_n2i16o16_w20k4p3,0" for dtype in ("f16", "bf16", "f64")),
    *(f"f16_n1i{c}o{c}_d5k3p1_h7k1_w13k1" for c in (8, 16, 24)),
)


@pytest.mark.parametrize("text", FIELD_CASES)
def test_c28_every_legal_case(text):
    for options in ({}, {"deterministic": True}, {"workspace_limit": 0}, {"autotune": "limited"}):
        with jcc.options(**options), jax.default_matmul_precision("highest"):
            harness.check_every_function(problems.parse(text), "native")


@contextlib.contextmanager
def denied(engines):
    """Other plans for the same compiled program."""
    module = _targets.cudnn()
    try:
        module.deny_engines(engines)
        module.set_plan_cache_capacity(0)
        module.set_plan_cache_capacity(1024)
        yield
    finally:
        module.deny_engines([])


ENGINE_CASES = ("n2i16o17_h8k3p1_w9k3p1", "n8i64o64_h14k3p1_w14k3p1", "n40i8o8_h32k3p1_w32k3p1")
ENGINE_CASES += ("g4_n2i32o32_h9k3s2p1_w9k3s2p1", "n2i8o16_d5k3p1_h7k3p1_w6k3p1")


@pytest.mark.parametrize("text", big(ENGINE_CASES, ENGINE_CASES[:1]))
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_c22_every_engine(dtype, text, record_property):
    """One after the other, each denied once it has run; those that are compiled at run time are left."""
    problem = parse(dtype, text)
    arrays, wrong, ran = harness.arrays(problem), [], []
    for role, function in three_directions(problem, precision="highest").items():
        others = {r: arrays[r] for r in "xwy" if r != role}
        expected = np.asarray(harness.third(problem, role, **others), np.float64)
        call, engines = jax.jit(function), []
        while len(engines) < 40:
            with denied(engines):
                kernel = jcc.explain(lambda: function(**others), device=DEVICE)[0].kernel  # noqa: B023
                if kernel.dtype != harness.dtype_of(problem) or "compiled" in kernel.notes:
                    break  # no plan is left but those in f32, or none at all
                got = np.asarray(call(**others), np.float64)
            engines.append(kernel.name.partition("_")[0])
            if not np.array_equal(got, expected):
                wrong.append(f"{role} {kernel}: off by {np.abs(got - expected).max():g}")
        ran.append(f"{role}: {' '.join(engines)}")
        assert engines
    record_property("engines", "; ".join(ran))
    assert not wrong, "\n".join(wrong)


CHOICES = (
    *({"workspace_limit": limit} for limit in (0, 1 << 20, 1 << 40)),
    *({"autotune": "limited"}, {"autotune": "fastest"}, {"deterministic": True}),
)
LAYER = big("n8i256o256_h56k3p1_w56k3p1", "n2i8o8_h9k3p1_w8k3p1")


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_c29_values_under_every_option(dtype):
    problem = parse(dtype, LAYER)
    a, program = harness.arrays(problem), all_three(problem)
    with jax.default_matmul_precision("highest"):
        expected = jax.jit(program)(a["x"], a["w"], a["y"])
        for options in CHOICES:
            with jcc.options(**options):
                got = jax.jit(program)(a["x"], a["w"], a["y"])
                told = jcc.explain(program, a["x"], a["w"], a["y"], device=DEVICE)
            for role in "xwy":
                harness.assert_equal(got[role], expected[role], f"{role}, {options}")
            limit = options.get("workspace_limit", 1 << 40)
            assert all(e.kernel.workspace <= limit for e in told), told


def real_numbers():
    """x, w and y whose sums round, and the problem."""
    problem = problems.parse(big("n32i64o64_h56k3p1_w56k3p1", "n2i6o8_h9k3p1_w8k3p1"))
    rng = np.random.default_rng(0)
    return problem, [rng.normal(size=a.shape).astype(np.float32) for a in harness.arrays(problem).values()]


def child_digest():
    problem, arrays = real_numbers()
    with jcc.options(deterministic=True):
        out = jax.jit(all_three(problem))(*arrays)
    print({r: hashlib.sha256(np.asarray(a).tobytes()).hexdigest() for r, a in sorted(out.items())})


def test_c42_deterministic():
    """Bit for bit over 20 calls, with the flag off in between, and in two other processes."""
    problem, arrays = real_numbers()
    program, first = all_three(problem), None
    for deterministic in (False, True, False, True):
        with jcc.options(deterministic=deterministic):
            told = jcc.explain(program, *arrays, device=DEVICE)
            call = jax.jit(program)
            results = [call(*arrays) for _ in range(10 if deterministic else 1)]
        if not deterministic:
            continue
        assert not any("not deterministic" in e.kernel.notes for e in told), told
        first = first or results[0]
        for again in results:
            jax.tree.map(harness.assert_equal, again, first)
    assert child("child_digest") == child("child_digest")


@pytest.mark.parametrize("way", ["argument", "context"])
@pytest.mark.parametrize("precision", ["highest", "default"])
def test_c41_one_hot(precision, way, record_property):
    """A single product to each sum: exact with HIGHEST, and off by TF32's 10 bits of mantissa at most."""
    c = big(64, 6)
    x, ct = np.random.default_rng(0).normal(size=(2, 2, 30, 30, c)).astype(np.float32)
    w, at = np.zeros((3, 3, c, c), np.float32), np.zeros_like(ct)
    w[1, 1], at[0, 5, 5] = np.eye(c), 1

    def f(x, w):
        return jcc.conv(x, w, precision=precision if way == "argument" else None)

    with jax.default_matmul_precision(precision if way == "context" else None):
        y, vjp = jax.vjp(jax.jit(f), x, w)
        pairs = {"y": (y, x), "dx": (vjp(ct)[0], ct)}
        pairs["dw"] = vjp(at)[1], np.broadcast_to(x[0, 4:7, 4:7, :, None], w.shape)
    for name, (got, wanted) in pairs.items():
        error = float((np.abs(got - wanted) / np.abs(wanted)).max())
        record_property(f"{name}, largest relative error", error)
        assert error <= (0 if precision == "highest" else 2**-10), name


def child_scan():
    """C47: 50 convolutions in a scan, whose inputs change with every step and every call."""
    problem = problems.parse("n2i16o16_h8k3p1_w9k3p1")
    conv, (x, w) = harness.function("conv", problem), harness.operands("conv", problem)

    @jax.jit
    def run(x, w):
        return lax.scan(lambda c, _: (c + 1, conv(x * c, w)), jnp.float32(1), length=50)[1]

    for factor in (1, -1, 2):
        expected = harness.oracle("conv", problem, factor * x, w)
        for c, y in enumerate(run(factor * x, w), 1):
            harness.assert_equal(y, c * expected, f"call {factor}, step {c}")
    print("right")


@pytest.mark.parametrize("flag", ["enable_command_buffer=", "graph_min_graph_size=1", ""])
def test_c47_command_buffers(flag):
    assert child("child_scan", **({"XLA_FLAGS": f"--xla_gpu_{flag}"} if flag else {})) == "right\n"


def test_two_threads():
    """Different programs at once, over and over."""
    errors = []

    def work(program, arrays, expected):
        try:
            for _ in range(30):
                jax.tree.map(harness.assert_equal, program(*arrays), expected)
        except BaseException as error:
            errors.append(error)

    threads = []
    for text in big(("n8i64o64_h28k3p1_w28k3p1", "g2_n8i32o48_w900k5p2"), problems.FEW[:2]):
        problem = problems.parse(text)
        arrays, program = list(harness.arrays(problem).values()), jax.jit(all_three(problem))
        threads.append(threading.Thread(target=work, args=(program, arrays, program(*arrays))))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@needs_gpu
def test_two_streams():
    """One program on two streams, where this JAX can be told to."""
    from jax.experimental.compute_on import compute_on

    problem = problems.parse("n8i64o64_h28k3p1_w28k3p1")
    conv, (x, w) = jax.jit(harness.function("conv", problem)), harness.operands("conv", problem)

    def both(x, w):
        with compute_on("gpu_stream:1"):
            a = conv(x, w)
        with compute_on("gpu_stream:2"):
            b = conv(2 * x, w)
        return a, b

    try:
        program = jax.jit(both).lower(x, w).compile()
    except Exception as error:
        pytest.skip(f"no streams of one's own: {error}".splitlines()[0])
    a, b = program(x, w)
    harness.assert_equal(a, conv(x, w))
    harness.assert_equal(b, conv(2 * x, w))


@pytest.mark.parametrize("text", problems.FEW)
def test_gradients_equal_those_of_lax(text, rng):
    """In f64, of the first and the second order."""
    problem = parse("f64", text)
    x, w = (rng.normal(size=a.shape) for a in harness.operands("conv", problem))

    def theirs(x, w):
        return lax.conv_general_dilated(
            *(x, w, problem.strides, problem.pads),
            rhs_dilation=problem.dilation,
            dimension_numbers=problem.dimension_numbers,
            feature_group_count=problem.groups,
        )

    def derivatives(conv):
        def gradients(x, w):
            return jax.grad(lambda *a: jnp.sin(conv(*a)).sum(), (0, 1))(x, w)

        return jax.jit(lambda: (gradients(x, w), jax.jvp(gradients, (x, w), (x, w))[1]))()

    close = functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9)
    jax.tree.map(close, derivatives(harness.function("conv", problem)), derivatives(theirs))


def child_tune():
    """C54: how long the first call takes, with trials."""
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    logging.getLogger("jax").setLevel(logging.WARNING)
    n, k, i, o = big((8, 32, 128, 32), (4, 4, 4, 3))
    x, w = np.ones((1, n, n, i), np.float32), np.ones((k, k, o, i), np.float32)
    start = time.perf_counter()
    with jcc.options(autotune="limited"):
        y = jax.jit(lambda x, w: jcc.conv_transpose(x, w, strides=k // 2))(x, w).block_until_ready()
    print(f"{y.shape}, the first call: {time.perf_counter() - start:.1f} s")


def test_a_second_process_uses_the_winner(tmp_path, record_property):
    outputs = [child("child_tune", JAX_CUDNN_CONV_CACHE_DIR=str(tmp_path)) for _ in range(2)]
    record_property("told", "".join(outputs))
    assert ["tuned: " in told for told in outputs] == [True, False], outputs
    assert len(json.loads((tmp_path / "plans.json").read_text())["plans"]) == 1


def child_pressure():
    """C29: as much memory as the results take, and hardly any for a workspace."""
    problem = problems.parse(LAYER)
    arrays = {role: jax.device_put(a) for role, a in harness.arrays(problem).items()}
    programs = {role: jax.jit(f) for role, f in three_directions(problem, precision="highest").items()}
    expected = {role: np.asarray(program(**arrays)) for role, program in programs.items()}
    stats = jax.devices()[0].memory_stats()
    left = (stats.get("pool_bytes") or stats["bytes_limit"]) - stats["bytes_in_use"] - expected["y"].nbytes
    for spare in (4 << 20, 32 << 20, 256 << 20):  # what is free may lie in pieces
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            ballast = jnp.zeros((left - spare) // 4, jnp.float32).block_until_ready()
            break
    before = _targets.cudnn().plan_cache_info()["size"]
    for role, program in programs.items():
        harness.assert_equal(program(**arrays), expected[role], role)
    plans = _targets.cudnn().plan_cache_info()["size"] - before
    print(f"{ballast.nbytes >> 20} MiB of ballast; {plans} of 3 took a plan without a workspace")


@needs_gpu
@pytest.mark.parametrize("fraction", [".98", ".004"])
def test_c29_memory_pressure(fraction, record_property):
    settings = {"XLA_PYTHON_CLIENT_PREALLOCATE": "true", "XLA_PYTHON_CLIENT_MEM_FRACTION": fraction}
    record_property("told", child("child_pressure", **settings))


def child_huge():
    """C23: 2**31 elements and more, all of them right, or an error that says what is too large."""
    shape, channel = (1, 2048, 2048, 514), 513
    ramp = (jnp.arange(2048 * 2048) % 251).reshape(1, 2048, 2048, 1).astype(jnp.float16)
    w = jnp.zeros((3, 3, 514, 1), jnp.float16).at[1, 1, channel].set(1)
    corner = jnp.zeros_like(ramp).at[0, -2, -2].set(1)

    def filled(value):
        return jnp.where(lax.broadcasted_iota(jnp.int32, shape, 3) == channel, ramp, jnp.float16(value))

    x = jax.jit(filled)(1)
    data = functools.partial(jcc.conv_backward_data, input_shape=shape)
    filt = functools.partial(jcc.conv_backward_filter, kernel_shape=w.shape)
    cases = {
        "y": (jcc.conv, (x, w), lambda out: (out == ramp).all()),
        "x": (data, (ramp, w), lambda out: (out == filled(0)).all()),
        "w": (filt, (x, corner), lambda out: (out[..., 0] == x[0, -3:, -3:]).all()),
    }
    for role, (function, operands, check) in cases.items():
        told = str(jcc.explain(function, *operands)[0])
        try:
            right = bool(jax.jit(lambda *a: check(function(*a)))(*operands))  # noqa: B023
        except jax.errors.JaxRuntimeError as error:
            right = str(error).startswith(("UNIMPLEMENTED", "RESOURCE_EXHAUSTED", "INVALID_ARGUMENT"))
            told += f": refused: {error}".splitlines()[0]
        print(f"{role} {'right' if right else 'WRONG'}: {told}", flush=True)


@needs_gpu
def test_c23_more_than_2_to_the_31(record_property):
    told = child("child_huge")
    record_property("told", told)
    assert told.count("right") == 3, told


if __name__ == "__main__":
    if not GPU:
        gpu_on_cpu.install()
    globals()[sys.argv[1]](*sys.argv[2:])
