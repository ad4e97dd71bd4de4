"""Every dtype, accumulation, preferred_element_type, rounding once, overflow, infinities."""

import harness
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
import reference

import jax_cudnn_conv as jcc

NARROW = ["bf16", "f16"]
WIDE = ["f64", "i32", "i8", "c64"]
FEW = [*problems.FEW[1:], "n2i33o17_h8k3p1_w9k3p1", "g4_n2i4o8_w9k3s2p1", "n2i4o8_h6k1s2_w7k1s2"]


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("text", FEW)
def test_c40_low_precision_is_the_f32_result_rounded_once(text, dtype, backend):
    """On any CPU, with or without instructions for the type, in all three directions."""
    harness.check_every_function(problems.parse(f"{dtype}_{text}"), backend)


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("text", FEW[:4])
def test_dtypes_that_run_on_xla(text, dtype):
    """They run on XLA with the same values; integer sums wrap like lax's."""
    harness.check_every_function(problems.parse(f"{dtype}_{text}"))


WIDENING = [
    ("bf16", jnp.float32),
    ("f16", jnp.float32),
    ("f32", jnp.float32),
    ("f32", jnp.float64),
    ("i8", jnp.int32),
    ("i8", jnp.float32),
    ("i32", jnp.int64),
    ("c64", jnp.complex128),
]


def large(name, problem, dtype):
    """Operands up to 124, exact in every dtype, whose sums do not fit 16 bits."""
    return [np.asarray(o, dtype) * np.asarray(31, dtype) for o in harness.operands(name, problem)]


@pytest.mark.parametrize(("dtype", "wide"), WIDENING, ids=[f"{a}-{jnp.dtype(b).name}" for a, b in WIDENING])
@pytest.mark.parametrize("name", harness.ROLES)
def test_preferred_element_type(name, dtype, wide):
    """Sums and results in the wider type, without rounding or wrapping to the narrow one in between."""
    problem = problems.parse("g2_n2i32o34_h5k3s2p1_w6k2")
    narrow = jnp.dtype(problems.DTYPES[dtype])
    a, b = large(name, problem, narrow)
    actual = jax.jit(harness.function(name, problem, preferred_element_type=wide))(a, b)
    exact = problems.parse(f"{'c64' if dtype == 'c64' else 'f64'}_{problem}")
    expected = harness.oracle(
        name, exact, *(o.astype(np.complex128 if dtype == "c64" else np.float64) for o in (a, b))
    )
    expected = expected.astype(wide)
    if narrow.itemsize < 4:
        with np.errstate(over="ignore"):
            assert (expected.astype(narrow).astype(wide) != expected).any()
    harness.assert_equal(actual, expected)


@pytest.mark.parametrize("dtype", NARROW)
def test_preferred_f32_on_each_backend(dtype, backend, rng):
    """Real numbers: within f32's rounding of the exact sum, far closer than the narrow type could be."""
    x, w = (np.asarray(rng.normal(size=s), problems.DTYPES[dtype]) for s in [(2, 9, 10, 64), (3, 3, 64, 32)])
    with jcc.options(backend=backend):
        y = jax.jit(lambda x, w: jcc.conv(x, w, preferred_element_type=jnp.float32))(x, w)
    exact = reference.conv(
        x.astype(np.float64).transpose(0, 3, 1, 2),
        w.astype(np.float64).transpose(3, 2, 0, 1),
        (1, 1),
        [(1, 1)] * 2,
        (1, 1),
    )
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, exact.transpose(0, 2, 3, 1), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", harness.ROLES)
def test_c25_gradients_of_a_wider_result(name, dtype, backend, rng):
    """Cotangents arrive wide; gradients have the operands' dtype, rounded once from the wide sum."""
    problem = problems.parse(f"{dtype}_n1i8o3_w8k5s2p2")
    a, b = harness.operands(name, problem)
    f = harness.function(name, problem, preferred_element_type=jnp.float32)
    first, second, result = harness.ROLES[name]
    with jcc.options(backend=backend):
        out, vjp = jax.vjp(jax.jit(f), a, b)
        ct = rng.integers(-999, 1000, out.shape).astype(np.float32)
        da, db = vjp(jnp.asarray(ct))
    assert out.dtype == np.float32
    assert (ct.astype(a.dtype).astype(np.float32) != ct).any() == (dtype == "bf16")
    harness.assert_equal(da, harness.third(problem, first, **{second: b, result: ct}))
    harness.assert_equal(db, harness.third(problem, second, **{first: a, result: ct}))


def test_c25_int8():
    """127*2 four times over is 1016 in int32, and wraps to -8 where the result is int8, as in lax."""
    x, w = np.full((1, 1, 4), 127, np.int8), np.full((1, 4, 1), 2, np.int8)
    assert jcc.conv(x, w, preferred_element_type=jnp.int32).ravel().tolist() == [1016]
    y = jcc.conv(x, w)
    assert y.dtype == np.int8
    assert y.ravel().tolist() == [-8]


@pytest.mark.parametrize("dtype", NARROW)
def test_c26_long_sums_do_not_stall(dtype, backend):
    """16384 ones: in a 16-bit accumulator the sum would stop at 256 or 2048."""
    x = np.ones((1, 16384, 1), problems.DTYPES[dtype])
    with jcc.options(backend=backend):
        dw = jcc.conv_backward_filter(x, x, kernel_shape=(1, 1, 1))
    assert dw.dtype == x.dtype
    assert dw.astype(np.float32).ravel().tolist() == [16384]


def test_c26_f16_overflow_is_infinite(backend):
    x, w = np.full((1, 1, 4), 200, np.float16), np.full((1, 4, 1), 200, np.float16)
    with jcc.options(backend=backend):
        assert jcc.conv(x, w).ravel().tolist() == [np.inf]
        assert jcc.conv(x, w, preferred_element_type=jnp.float32).ravel().tolist() == [160000]


def test_c26_f16_transposed_convolution_with_a_huge_kernel(backend, rng):
    x = rng.integers(-1, 14, (2, 20, 52, 9)).astype(np.float16)
    w = rng.integers(-2, 0, (12, 84, 2, 9)).astype(np.float16)
    with jcc.options(backend=backend):
        y = jax.jit(lambda x, w: jcc.conv_transpose(x, w, padding=12))(x, w)
    exact = reference.deconv(
        x.astype(np.float64).transpose(0, 3, 1, 2),
        w.astype(np.float64).transpose(3, 2, 0, 1),
        (1, 1),
        [(12, 12)] * 2,
        (1, 1),
    )
    with np.errstate(over="ignore"):
        harness.assert_equal(y, exact.transpose(0, 2, 3, 1).astype(np.float16))


def test_c36_f64_is_not_downcast(rng):
    """1e8 plus small integers: f32 would lose them."""
    for text in ("f64_n1i2o3_w9k3s2p1", "f64_g2_n1i2o4_h5k2s2p1,0_w6k3p0,2d2"):
        problem = problems.parse(text)
        for name in harness.ROLES:
            a, b = harness.operands(name, problem)
            harness.assert_equal(
                harness.function(name, problem)(a + 1e8, b), harness.oracle(name, problem, a + 1e8, b)
            )
    problem = problems.parse("f64_n1i2o3_w9k3s2p1")
    x, w = harness.operands("conv", problem)
    y = harness.arrays(problem)["y"] + 1e8
    dx, dw = jax.vjp(harness.function("conv", problem), x, w)[1](y)
    harness.assert_equal(dx, harness.third(problem, "x", y=y, w=w))
    harness.assert_equal(dw, harness.third(problem, "w", x=x, y=y))


def test_c36_onednn_refuses_f64_rather_than_downcast(onednn):
    x, w = np.ones((1, 5, 2)), np.ones((3, 2, 3))
    with jcc.options(backend="native"), pytest.raises(NotImplementedError, match="float64"):
        jax.jit(jcc.conv)(x, w)


def test_c37_full_range_integers(rng):
    x = rng.integers(-128, 128, (8, 16, 16, 4)).astype(np.int8)
    w = rng.integers(-128, 128, (3, 3, 4, 64)).astype(np.int8)
    exact = reference.conv(
        x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1), (1, 1), [(1, 1)] * 2, (1, 1)
    ).transpose(0, 2, 3, 1)
    y = jax.jit(lambda x, w: jcc.conv(x, w, preferred_element_type=jnp.int32))(x, w)
    harness.assert_equal(y, exact.astype(np.int32))
    harness.assert_equal(jax.jit(jcc.conv)(x.astype(np.int32), w.astype(np.int32)), exact.astype(np.int32))


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_c38_complex(dtype):
    """Derivatives do not conjugate: <v, J t> = <J^T v, t> for plain sums of products."""
    problem = problems.parse("c64_n1i2o3_w5k2s2p1,0")
    for name, (first, second, result) in harness.ROLES.items():
        f = harness.function(name, problem)
        (a, b), (ta, tb) = (
            [o.astype(dtype) for o in harness.operands(name, problem, seed)] for seed in (0, 1)
        )
        v = harness.arrays(problem, 2)[result].astype(dtype)
        out, tangent = jax.jvp(f, (a, b), (ta, tb))
        da, db = jax.vjp(f, a, b)[1](v)
        assert out.dtype == da.dtype == db.dtype == dtype
        assert (out == harness.oracle(name, problem, a, b)).all()
        assert (tangent == harness.oracle(name, problem, ta, b) + harness.oracle(name, problem, a, tb)).all()
        assert (da == harness.third(problem, first, **{second: b, result: v})).all()
        assert (db == harness.third(problem, second, **{first: a, result: v})).all()
        assert (v * tangent).sum() == (da * ta).sum() + (db * tb).sum()


@pytest.mark.parametrize("channels", [1, 16])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_c27_infinite_weights(dtype, channels, backend):
    """Beside the padding it is not defined whether a zero meets them; everywhere else the sums are IEEE's."""
    x, w = np.ones((1, 6, channels), dtype), np.ones((3, channels, channels), dtype)
    x[0, 3, 0], w[0] = 0, np.inf
    with jcc.options(backend=backend):
        y = np.asarray(jcc.conv(x, w, padding=[(1, 0)]), np.float32)[0]
        t = np.asarray(jcc.conv_transpose(x, w, padding=0), np.float32)[0]
    inner = np.full((4, channels), np.inf)
    inner[3] = np.nan  # the window that starts at the zero
    np.testing.assert_array_equal(y[1:], inner)
    assert (np.isnan(y[0]) | (y[0] == 2 * channels)).all()
    inner[1], inner[3] = np.nan, np.inf  # the output on which the zero meets the infinite tap
    np.testing.assert_array_equal(t[2:6], inner)
    assert (np.isnan(t[7]) | (t[7] == channels)).all()


def test_bf16_ones(backend):
    """C21: a 2x2 of ones with a 2x2 of ones once gave 1."""
    ones = jnp.ones((1, 2, 2, 1), jnp.bfloat16)
    with jcc.options(backend=backend):
        assert jcc.conv(ones, ones.reshape(2, 2, 1, 1), padding=0).ravel().tolist() == [4]


@pytest.mark.parametrize(
    "precision", [None, "highest", jax.lax.Precision.HIGH, (jax.lax.Precision.HIGHEST,) * 2]
)
def test_precision_is_accepted_and_exact(precision, backend):
    problem = problems.parse("g2_n2i4o6_h7k3s2p1_w9k2p1,0")
    for name in harness.ROLES:
        a, b = harness.operands(name, problem)
        with jcc.options(backend=backend):
            harness.assert_equal(
                harness.function(name, problem, precision=precision)(a, b),
                harness.oracle(name, problem, a, b),
            )
