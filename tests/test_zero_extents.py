"""C15: no batch, no channels, no space: legal inputs with the mathematically right answer."""

import harness
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import jax_cudnn_conv as jcc

PROBLEMS = problems.ZERO_EXTENTS


def freed_nan_memory():
    """Leave freed buffers full of NaN behind, for results that nothing writes."""
    for size in (16, 64, 256, 1024, 4096):
        jax.block_until_ready([jnp.full((size,), np.nan, jnp.float32) for _ in range(32)])


def test_values(problem, backend):
    freed_nan_memory()
    harness.check_every_function(problem, backend)


@pytest.mark.parametrize(
    "text", ["n0i3o4_w5k3", "n2i0o4_w5k3", "n2i3o0_w5k3", "n1i1o1_w1k2", "g2_n0i4o6_w7k3s2p1"]
)
def test_low_precision(text, backend):
    freed_nan_memory()
    harness.check_every_function(problems.parse("bf16_" + text), backend)


def test_gradients(problem, backend):
    """Nothing uninitialised comes back: the gradient of an empty sum is zero."""
    x, w = harness.operands("conv", problem)
    y = harness.arrays(problem)["y"]
    with jcc.options(backend=backend):
        call = jax.jit(lambda x, w, y: jax.vjp(harness.function("conv", problem), x, w)[1](y))
        freed_nan_memory()
        dx, dw = call(x, w, y)
    harness.assert_equal(dx, harness.third(problem, "x", y=y, w=w), harness.rerun(problem))
    harness.assert_equal(dw, harness.third(problem, "w", x=x, y=y), harness.rerun(problem))


def test_weight_gradient_of_no_samples(backend):
    freed_nan_memory()
    with jcc.options(backend=backend):
        dw = jax.grad(lambda w: jcc.conv(jnp.zeros((0, 5, 3), jnp.float32), w).sum())(
            jnp.ones((3, 3, 4), jnp.float32)
        )
    harness.assert_equal(dw, np.zeros((3, 3, 4), np.float32))


def test_no_rows_between_the_pads(backend):
    layout = ("NCHW", "OIHW", "NCHW")
    with jcc.options(backend=backend):
        x, w = np.zeros((2, 32, 0, 5), np.float32), np.ones((2, 32, 2, 2), np.float32)
        y = jcc.conv(x, w, padding=1, dimension_numbers=layout)
    harness.assert_equal(y, np.zeros((2, 2, 1, 6), np.float32))


@pytest.mark.parametrize("transform", [jax.jacrev, jax.jacfwd])
def test_jacobian_of_an_empty_output(transform, backend):
    with jcc.options(backend=backend):
        f = transform(lambda x, w: jcc.conv(x, w, padding=0), (0, 1))
        dx, dw = f(jnp.ones((1, 1, 1), jnp.float32), jnp.ones((2, 1, 1), jnp.float32))
    assert dx.shape == (1, 0, 1, 1, 1, 1)
    assert dw.shape == (1, 0, 1, 2, 1, 1)


def test_transpose_of_nothing(backend):
    """An empty x makes an output of the formula's size, all zeros."""
    with jcc.options(backend=backend):
        y = jcc.conv_transpose(
            jnp.zeros((2, 0, 4), jnp.float32), jnp.ones((3, 3, 4), jnp.float32), strides=2, padding=0
        )
        full = jcc.conv_transpose(
            jnp.zeros((2, 5, 0), jnp.float32), jnp.ones((3, 3, 0), jnp.float32), strides=2
        )
    harness.assert_equal(y, np.zeros((2, 1, 3), np.float32))
    harness.assert_equal(full, np.zeros((2, 10, 3), np.float32))


@pytest.mark.parametrize("backend_name", ["auto", "xla"])
@pytest.mark.parametrize("dtype", ["f64", "i32", "c64"])
def test_other_dtypes(dtype, backend_name):
    harness.check_every_function(problems.parse(f"{dtype}_n0i3o4_w5k3"), backend_name)


@pytest.mark.parametrize(
    "text",
    [
        "n2i3o5_w11k4s4p0",  # kernel = stride: one matrix product, and a tail that it does not write
        "n2i8o8_h11k2s2p0_w9k2s2p0",
        "n2i3o5_w11k1s3p0",  # one tap: every third element
        "g2_n2i4o6_w12k3s2p-2,-3",  # cropped
        "n1i2o3_w3k2s2p6,5",  # outputs that see padding only
        "n2i4o4_d2k3p3_h5k2_w5k2",  # depth taps that meet padding only
    ],
)
def test_unread_and_unreached_elements_are_zero(text, backend):
    """Memory that held NaN before: no element of a result is left as it was."""
    for _ in range(3):
        freed_nan_memory()
        harness.check_every_function(problems.parse(text), backend)
