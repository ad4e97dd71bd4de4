"""conv_transpose: its sizes, paddings and values, against numbers worked out by hand, the oracle and lax."""

import functools
import itertools

import harness
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
import reference

import jax_cudnn_conv as jcc


def transpose1(x, w, backend="auto", **keywords):
    """conv_transpose of two 1-D lists."""
    x, w = np.asarray(x, np.float32)[None, :, None], np.asarray(w, np.float32)[:, None, None]
    with jcc.options(backend=backend):
        return jcc.conv_transpose(x, w, **keywords)[0, :, 0].tolist()


@pytest.mark.parametrize(
    ("padding", "length"), [(0, 16), (1, 14), ([(0, 0)], 16), ([(1, 1)], 14), ([(2, 1)], 13), ("VALID", 16)]
)
def test_c03_explicit_padding_is_that_of_the_transposed_convolution(padding, length, backend):
    """PyTorch's meaning, where padding 0 equals VALID (lax's own gives 10 and 12)."""
    x, w = [1, -2, 3, 4], [1, 2, 3, -4]
    y = transpose1(x, w, backend, strides=4, padding=padding)
    full = np.outer(x, w).ravel()
    lo, hi = {14: (1, 1), 13: (2, 1), 16: (0, 0)}[length]
    assert len(y) == length
    assert y == full[lo : 16 - hi].tolist()


def test_c04_the_kernel_is_not_flipped(backend):
    assert transpose1([1, 0], [1, 2, 3], backend, strides=2, padding=0) == [1, 2, 3, 0, 0]


def test_c05_the_kernel_has_the_shape_of_the_transposed_convolution(backend):
    """Two input and three output channels; PyTorch's (in, out, k) is OIW."""
    problem = problems.parse("n1i3o2_w6k3s2p1@NCW-OIW-NCW")
    x, w = harness.operands("conv_transpose", problem)
    assert x.shape == (1, 2, 3)
    assert w.shape == (2, 3, 3)
    with jcc.options(backend=backend):
        y = jcc.conv_transpose(x, w, strides=2, padding=1, output_padding=1, dimension_numbers=problem.layout)
    assert y.shape == (1, 3, 6)
    harness.assert_equal(y, harness.oracle("conv_transpose", problem, x, w))


def test_c08_output_padding_holds_values(backend):
    w = np.arange(1, 10, dtype=np.float32).reshape(3, 3, 1, 1)
    with jcc.options(backend=backend):
        y = jcc.conv_transpose(np.ones((1, 1, 1, 1), np.float32), w, strides=2, padding=1, output_padding=1)
    assert y[0, :, :, 0].tolist() == [[5, 6], [8, 9]]


def test_c08_output_padding_beyond_the_taps_is_zero(backend):
    assert transpose1([1, 1], [5], backend, strides=3, padding=0, output_padding=2) == [5, 0, 0, 5, 0, 0]


@pytest.mark.parametrize(("op", "length"), [(0, 7), (1, 8)])
def test_c08_output_padding_with_dilation(op, length, backend):
    x, w = np.array([1, 2, 3.0]), np.array([1, 10, 100.0])
    y = transpose1(x, w, backend, strides=2, dilation=2, padding=1, output_padding=op)
    expected = reference.deconv(x[None, None], w[None, None], (2,), [(1, 1)], (2,), 1, (op,))[0, 0]
    assert len(y) == length
    assert y == expected.tolist()
    assert reference.conv_extent(length, 3, 2, (1, 1), 2) == 3


def test_c08_output_padding_up_to_the_dilation(backend):
    y = transpose1([1, 2, 3, 4], [1, 10], backend, strides=1, dilation=3, padding=0, output_padding=2)
    assert y == [1, 2, 3, 14, 20, 30, 40, 0, 0]


@pytest.mark.parametrize(
    ("k", "s", "length", "expected"),
    [
        (2, 1, 2, [1, 4]),
        (3, 2, 3, [1, 2, 5, 4, 9, 6]),
        (4, 2, 3, [2, 5, 8, 9, 14, 9]),
        (2, 3, 2, [1, 2, 0, 2, 4, 0]),
        (1, 3, 2, [1, 0, 0, 2, 0, 0]),
    ],
)
def test_c09_same_puts_the_odd_unit_high(k, s, length, expected, backend):
    assert transpose1(range(1, length + 1), range(1, k + 1), backend, strides=s, padding="SAME") == expected


def test_c11_cropping_after_the_stride(backend):
    assert transpose1([1, 2, 3, 4], [1], backend, strides=2, padding=[(1, 2)]) == [0, 2, 0, 3]


def test_c12_stride_and_dilation_of_two(backend):
    a = np.array([[1, 2], [3, 4]], np.float32)
    with jcc.options(backend=backend):
        y = jcc.conv_transpose(a[None, ..., None], a[..., None, None], strides=2, dilation=2, padding=0)[
            0, :, :, 0
        ]
    rows = [[1, 0, 4, 0, 4], [0] * 5, [6, 0, 20, 0, 16], [0] * 5, [9, 0, 24, 0, 16]]
    assert y.tolist() == rows


def test_c12_every_axis_its_own_geometry(backend):
    layout = ("NCDHW", "OIDHW", "NCDHW")
    problem = problems.parse("n1i3o2_d5k3p1,0d2_h6k2s2p0,1_w12k1s3@" + "-".join(layout))
    x, w = harness.operands("conv_transpose", problem)
    assert x.shape == (1, 2, 2, 3, 4)
    assert w.shape == (2, 3, 3, 2, 1)
    with jcc.options(backend=backend):
        y = jcc.conv_transpose(
            x,
            w,
            strides=(1, 2, 3),
            padding=((1, 0), (0, 1), (0, 0)),
            dilation=(2, 1, 1),
            output_padding=(0, 1, 2),
            dimension_numbers=layout,
        )
    assert y.shape == (1, 3, 5, 6, 12)
    harness.assert_equal(y, harness.oracle("conv_transpose", problem, x, w))


@pytest.mark.parametrize(
    ("length", "k", "s", "p", "result"),
    [(4, 4, 2, 3, 4), (2, 2, 2, 2, 0), (14, 3, 1, 8, 0), (14, 3, 1, 7, 2)],
)
def test_c33_padding_near_or_beyond_the_kernel(length, k, s, p, result, backend):
    x, w = np.arange(1.0, length + 1), np.arange(1.0, k + 1)
    y = transpose1(x, w, backend, strides=s, padding=p)
    assert len(y) == result
    assert y == reference.deconv(x[None, None], w[None, None], (s,), [(p, p)], (1,))[0, 0].tolist()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("length", [127, 128])
def test_c44_bias_and_a_size_the_stride_does_not_divide(length, dtype, backend):
    if dtype == "bf16":
        backend = "xla" if backend == "xla" else "auto"
    problem = problems.parse(f"{dtype}_n2i3o5_w{length}k3s2p1")
    x, w = harness.operands("conv_transpose", problem)
    b = jnp.asarray([1, -2, 3], x.dtype)
    kw = harness.keywords("conv_transpose", problem)
    y = harness.oracle("conv_transpose", problem, x, w)

    def f(x, w, b):
        return jcc.conv_transpose(x, w, bias=b, **kw)

    with jcc.options(backend=backend):
        out, vjp = jax.vjp(jax.jit(f), x, w, b)
        v = harness.arrays(problem)["x"]
        dx, dw, db = vjp(jnp.asarray(v))
    assert out.shape == (2, length, 3)
    harness.assert_equal(out, jnp.asarray(y) + b)
    harness.assert_equal(dx, harness.third(problem, "y", x=v, w=w))
    harness.assert_equal(dw, harness.third(problem, "w", x=v, y=x))
    assert db.shape == b.shape
    assert db.dtype == b.dtype
    if dtype == "f32":
        harness.assert_equal(db, v.sum((0, 1)))


GEOMETRIES = [
    (k, s, d) for k, s, d in itertools.product((1, 2, 3, 4, 5), (1, 2, 3, 4), (1, 2, 3)) if k > 1 or d == 1
]


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("k", "s", "d"), GEOMETRIES)
def test_strings_agree_with_lax(k, s, d, padding, rng):
    """Sizes for every length; values (in float64, where lax is right) for one."""

    def ours(x, w):
        return jcc.conv_transpose(x, w, strides=s, padding=padding, dilation=d)

    def theirs(x, w):
        return jax.lax.conv_transpose(
            x,
            w,
            (s,),
            padding,
            rhs_dilation=(d,),
            dimension_numbers=("NWC", "WIO", "NWC"),
            transpose_kernel=True,
        )

    w = rng.integers(-4, 5, (k, 2, 3)).astype(np.float64)
    for length in range(1, 7):
        x = jax.ShapeDtypeStruct((2, length, 3), np.float64)
        assert jax.eval_shape(ours, x, w).shape == jax.eval_shape(theirs, x, w).shape
    x = rng.integers(-4, 5, (2, 5, 3)).astype(np.float64)
    if (k, s, d) in GEOMETRIES[::3]:
        harness.assert_equal(ours(x, w), theirs(x, w))


@pytest.mark.parametrize("padding", ["SAME", "SAME_LOWER", "VALID", 0, 1, [(0, 2)], [(3, -1)]])
@pytest.mark.parametrize(("k", "s", "d"), [(3, 2, 1), (2, 3, 1), (3, 2, 4), (1, 4, 1), (5, 1, 3)])
def test_convolution_maps_every_size_back(k, s, d, padding):
    """For every legal output padding, `conv` with the same arguments gives the input's length again."""
    w = jax.ShapeDtypeStruct((k, 2, 3), np.float32)
    for length, op in itertools.product(range(2, 6), range(max(s, d))):
        kw = {"strides": s, "dilation": d}
        y = jax.ShapeDtypeStruct((1, length, 3), np.float32)
        x = jax.eval_shape(
            functools.partial(jcc.conv_transpose, padding=padding, output_padding=op, **kw), y, w
        )
        plain = jax.eval_shape(functools.partial(jcc.conv_transpose, padding=padding, **kw), y, w)
        assert x.shape[1] == plain.shape[1] + op
        if op < s and not isinstance(padding, str):
            assert jax.eval_shape(functools.partial(jcc.conv, padding=padding, **kw), x, w).shape == y.shape
        if op == 0:
            assert jax.eval_shape(functools.partial(jcc.conv, padding=padding, **kw), x, w).shape == y.shape


@pytest.mark.parametrize("op", [0, 1, 2, 3])
def test_output_padding_is_a_lower_high_pad(op, backend):
    x, w = [1, -2, 3], [2, 3, 5]
    kw = {"strides": 3, "dilation": 4}
    y = transpose1(x, w, backend, padding=[(2, 1)], output_padding=op, **kw)
    assert y == transpose1(x, w, backend, padding=[(2, 1 - op)], **kw)
    assert len(y) == 2 * 3 + 4 * 2 + 1 - 3 + op


@pytest.mark.parametrize("op", [0, 1, 2])
def test_output_shape_is_another_way_to_say_it(op, backend):
    kw = {"strides": 3, "padding": [(2, 1)]}
    y = transpose1([1, -2, 3], [2, 3, 5], backend, output_padding=op, **kw)
    assert transpose1([1, -2, 3], [2, 3, 5], backend, output_shape=(len(y),), **kw) == y


@pytest.mark.parametrize("padding", ["SAME", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("k", "s"), [(3, 2), (4, 3), (2, 3), (1, 2)])
def test_output_shape_with_a_string(k, s, padding, backend):
    """Every extent that `conv` with this string maps to the input's length, with the pads of that extent."""
    x, w = np.array([1.0, -2, 3]), np.arange(1.0, k + 1)
    reached = 0
    for extent in range(1, 13):
        pads = (0, 0) if padding == "VALID" else reference.same_pads(extent, k, s, 1, "LOWER" in padding)
        call = functools.partial(
            transpose1, x, w, backend, strides=s, padding=padding, output_shape=(extent,)
        )
        if reference.conv_extent(extent, k, s, pads, 1) != 3:
            with pytest.raises(ValueError, match="output_shape"):
                call()
            continue
        reached += 1
        assert (
            call()
            == reference.conv_dx(x[None, None], w[None, None], (extent,), (s,), [pads], (1,))[0, 0].tolist()
        )
    assert reached == s


@pytest.mark.parametrize("padding", ["SAME", "VALID", "SAME_LOWER", 1, [(2, 1), (0, 3)]])
def test_is_the_linear_transpose_of_conv(padding, backend, rng):
    """With the same arguments, from the size that conv_transpose chose."""
    x, w = (rng.integers(-4, 5, shape).astype(np.float32) for shape in [(2, 4, 5, 6), (3, 2, 2, 6)])
    kw = {"strides": (2, 3), "padding": padding, "dilation": (1, 2), "groups": 2}
    with jcc.options(backend=backend):
        y = jcc.conv_transpose(x, w, **kw)
        (expected,) = jax.linear_transpose(lambda y: jcc.conv(y, w, **kw), y)(x)
    harness.assert_equal(y, expected)


def test_scalar_and_sequence_forms(backend):
    """One integer stands for all axes, everywhere."""
    problem = problems.parse("n1i2o3_h9k3s2p1_w9k3s2p1")
    x, w = harness.operands("conv_transpose", problem)
    with jcc.options(backend=backend):
        short = jcc.conv_transpose(x, w, strides=2, padding=1, output_padding=0, dilation=1)
        long = jcc.conv_transpose(
            x,
            w,
            strides=[2, 2],
            padding=[1, (1, 1)],
            output_padding=[0, 0],
            dilation=(1, 1),
            output_shape=None,
        )
    harness.assert_equal(short, long)
