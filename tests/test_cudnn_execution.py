"""Values through the real handlers, on plans of the real cuDNN, executed by the double.

`pytest --cudnn` runs the tests of values, gradients, dtypes, layouts and batching on cuDNN as well; here is
what they do not reach.
"""

import functools
import threading

import gpu_on_cpu
import harness
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import jax_cudnn_conv as jcc

double = gpu_on_cpu.double


@pytest.fixture(autouse=True)
def fresh():
    double.double_reset()
    yield
    double.double_reset()
    gpu_on_cpu.use_device("sm_90")


def test_every_problem_runs_on_cudnn():
    before = double.double_executions()
    for text in problems.ALL:
        harness.check_every_function(problems.parse(text), "native")
    assert double.double_executions() - before >= 400  # of 432: some are all padding, and zero


@pytest.mark.parametrize("text", problems.FEW + problems.CURATED["crop"])
def test_values_from_another_machine(text):
    """As in an exported program: the plan is chosen when it runs, on whatever GPU that is."""
    gpu_on_cpu.use_device("sm_80", known=False)
    harness.check_every_function(problems.parse(text), "native")


@pytest.mark.parametrize("text", [*problems.FEW, *problems.CURATED["uneven"], *problems.CURATED["crop"]])
def test_values_on_an_old_gpu(text):
    """Where cuDNN is slow with uneven pads, x is padded beforehand."""
    gpu_on_cpu.use_device("sm_75")
    harness.check_every_function(problems.parse(text), "native")


@pytest.mark.parametrize("text", problems.CURATED["uneven"])
def test_a_mutation_is_noticed(text):
    """With the low and high pads swapped in the plan, the same checks fail."""
    double.double_swap_padding(1)
    with pytest.raises(AssertionError):
        harness.check_every_function(problems.parse(text), "native")


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("text", [*problems.FEW, "n2i3o4_h5k2p1_w6k3s2p0,1@NCHW-OIHW-NCHW"])
def test_fused_bias_and_activation(text, relu, dtype):
    problem = problems.parse(f"{dtype}_{text}" if dtype != "f32" else text)
    x, w = harness.operands("conv", problem)
    bias = np.arange(problem.o) - problem.o // 2
    conv = harness.function("conv", problem)

    def fused(x, w, b):
        return conv(x, w, bias=b, activation="relu" if relu else None)

    before = double.double_executions()
    actual = jax.jit(fused)(x, w, jnp.asarray(bias, x.dtype))
    assert double.double_executions() - before == 1
    channels = problem.dimension_numbers[2].index("C")
    shape = [-1 if axis == channels else 1 for axis in range(x.ndim)]
    expected = harness.oracle("conv", problem, x, w).astype(np.float64) + bias.reshape(shape)
    if relu:
        expected = np.maximum(expected, 0)
    harness.assert_equal(actual, harness.rounded(expected, x.dtype), harness.rerun(problem))


def test_gradients_of_the_fused_convolution():
    """Equal to those of the operations one by one, in every argument and both modes."""
    problem = problems.parse("g2_n2i4o6_h7k3s2p1_w6k2")
    x, w = harness.operands("conv", problem)
    b = jnp.arange(-3.0, 3.0, dtype=jnp.float32)
    conv = harness.function("conv", problem)

    def fused(x, w, b):
        return conv(x, w, bias=b, activation="relu")

    def separate(x, w, b):
        return jax.nn.relu(conv(x, w) + b)

    y = harness.arrays(problem)["y"]
    tangents = tuple(jnp.full_like(a, 2) for a in (x, w, b))
    for wanted in (
        lambda f: f(x, w, b),
        lambda f: jax.vjp(f, x, w, b)[1](y),
        lambda f: jax.jvp(f, (x, w, b), tangents),
        lambda f: jax.vmap(f, (0, None, None))(jnp.stack([x, -x]), w, b),
        lambda f: jax.vmap(f, (None, 0, 0))(x, jnp.stack([w, -w]), jnp.stack([b, 2 * b])),
        lambda f: jax.jit(jax.grad(lambda *a: (f(*a) * y).sum(), 2))(x, w, b),
    ):
        jax.tree.map(harness.assert_equal, wanted(fused), wanted(separate))


def test_widening_output():
    """f32 results of 16-bit operands, which cuDNN lacks: computed in f32, as exactly."""
    for dtype in ("bf16", "f16"):
        problem = problems.parse(f"{dtype}_g2_n2i4o6_w7k3s2p1")
        x, w = harness.operands("conv", problem)
        y = jax.jit(harness.function("conv", problem, preferred_element_type=jnp.float32))(x, w)
        expected = harness.oracle("conv", problem, x, w).astype(np.float32)
        harness.assert_equal(y, expected)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_c26_sums_of_16_bits(dtype):
    """16384 ones, summed in f32."""
    x = jnp.ones((1, 16384, 1), harness.dtype_of(problems.parse(f"{dtype}_n1i1o1_w5k1")))
    dw = jcc.conv_backward_filter(x, x, kernel_shape=(1, 1, 1))
    assert float(dw.ravel()[0]) == 16384


def test_bfloat16_on_an_old_gpu():
    """In f32, where the GPU is known while lowering; a clear error where it is not."""
    problem = problems.parse("bf16_n2i3o5_w9k3")
    gpu_on_cpu.use_device("sm_75")
    harness.check_every_function(problem, "native")
    gpu_on_cpu.use_device("sm_75", known=False)
    x, w = harness.operands("conv", problems.parse("bf16_n2i3o5_w8k3"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="UNIMPLEMENTED.*bf16.*fwd groups=1 x:bf16"):
        jax.jit(lambda x, w: jcc.conv(x, w, padding=0))(x, w)


def test_eight_threads():
    """All bit-equal to one thread, with one handle for each call that is under way."""
    chosen = [problems.parse(text) for text in problems.ALL[::6]]
    programs, wanted = [], []
    for problem in chosen:
        x, w = harness.operands("conv", problem)
        y = harness.arrays(problem)["y"]

        def all_three(x, w, y, problem=problem):
            return (
                harness.function("conv", problem)(x, w),
                harness.function("conv_backward_data", problem)(y, w),
                harness.function("conv_backward_filter", problem)(x, y),
            )

        programs.append(functools.partial(jax.jit(all_three).lower(x, w, y).compile(), x, w, y))
        wanted.append(programs[-1]())
    failures = []

    def work(seed):
        for k in np.random.default_rng(seed).permutation(len(programs)):
            try:
                jax.tree.map(harness.assert_equal, programs[k](), wanted[k])
            except Exception as error:
                failures.append(f"{problems.format(chosen[k])}: {error}")

    _cudnn().set_plan_cache_capacity(8)  # so that plans are also made at once
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        _cudnn().set_plan_cache_capacity(1024)
    assert not failures
    assert 1 <= double.double_handles() <= 8


def test_the_cache_is_bounded():
    module = _cudnn()
    module.set_plan_cache_capacity(4)
    try:
        for length in range(20, 32):
            x, w = np.ones((1, length, 3), np.float32), np.ones((3, 3, 2), np.float32)
            assert float(jax.jit(jcc.conv)(x, w)[0, 1, 0]) == 9
        assert module.plan_cache_info()["size"] == 4
        records = double.double_records()
        for length in range(40, 52):
            x = np.ones((1, length, 3), np.float32)
            jax.jit(jcc.conv)(x, w).block_until_ready()
        assert double.double_records() <= 1.5 * records  # cuDNN's descriptors go with the plans
    finally:
        module.set_plan_cache_capacity(1024)


def test_c41_highest_is_exact():
    """One-hot weights give x back to the last bit, and so in the gradients (the double never rounds to TF32;
    test_cudnn_plans checks which engines are allowed)."""
    x = np.random.default_rng(0).normal(size=(2, 6, 3)).astype(np.float32)
    w = np.zeros((3, 3, 3), np.float32)
    w[1] = np.eye(3)
    y, vjp = jax.vjp(lambda x: jcc.conv(x, w, precision="highest"), x)
    harness.assert_equal(y, x)
    harness.assert_equal(vjp(x)[0], x)


def _cudnn():
    from jax_cudnn_conv import _targets

    return _targets.cudnn()
