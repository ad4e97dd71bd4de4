"""`jcc.lax` means what `jax.lax` means, on the primitive that the canonical form says."""

import dataclasses
import inspect

import harness
import jax
import jax.numpy as jnp
import lax_calls
import numpy as np
import pytest
from jax import lax
from lax_calls import Call

import jax_cudnn_conv as jcc

FUNCTIONS = ("conv_general_dilated", "conv_transpose")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_are_those_of_jax(name):
    def parameters(module):
        found = inspect.signature(getattr(module, name)).parameters.values()
        return [(p.name, p.kind, p.default) for p in found]

    theirs, ours = parameters(lax), parameters(jcc.lax)
    assert ours[: len(theirs)] == theirs
    assert [name for name, *_ in ours[len(theirs) :]] in ([], ["use_consistent_padding"])  # from jax 0.8 on


# For each row of the derivation's table: a call, the primitive that it is, and whether lhs comes second.
ROWS = {
    "forward": (Call(2, 3, 4, (9, 8), (3, 2), (2, 1), ((1, 2), (0, 1)), (1, 1), (1, 2)), "conv_fwd"),
    "forward of groups": (Call(2, 2, 3, (9,), (3,), (2,), ((1, 1),), (1,), (1,), features=3), "conv_fwd"),
    "forward, crops": (Call(1, 2, 3, (9,), (2,), (2,), ((-2, 3),), (1,), (1,)), "conv_fwd"),
    "forward of small kernels and batch groups": (
        Call(2, 3, 2, (9,), (2,), (1,), ((0, 1),), (1,), (1,), batches=2),
        "conv_fwd",
    ),
    "kernel as large as the image": (
        Call(3, 2, 4, (8, 9), (8, 9), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1)),
        "conv_wgrad",
    ),
    "by the kernel, strides and groups": (
        Call(3, 2, 4, (9,), (5,), (1,), ((1, 1),), (1,), (2,), batches=2),
        "conv_wgrad",
    ),
    "by the kernel, one example to a group": (
        Call(3, 2, 4, (9,), (9,), (1,), ((1, 1),), (1,), (1,), features=2),
        "conv_wgrad",
    ),
    "by the input": (Call(2, 3, 4, (5,), (3,), (1,), ((1, 2),), (2,), (1,)), "conv_dgrad"),
    "by the input, uneven, dilated, groups": (
        Call(2, 3, 2, (5, 4), (3, 2), (1, 1), ((4, 0), (-1, 3)), (3, 1), (2, 1), features=2),
        "conv_dgrad",
    ),
    "by the input, batch groups": (
        Call(2, 3, 2, (5,), (3,), (1,), ((1, 2),), (2,), (1,), batches=3),
        "conv_dgrad",
    ),
    "pads that are most of the work": (
        Call(2, 3, 4, (3, 4), (3, 3), (1, 1), ((3, 3), (4, 4)), (1, 1), (1, 1)),
        "conv_dgrad",
    ),
    "pads that are most of the work, lhs the kernel": (
        Call(2, 3, 4, (2, 3), (5, 5), (1, 1), ((4, 4), (4, 4)), (1, 1), (1, 1)),
        "conv_dgrad swapped",
    ),
    "by the input, lhs the kernel": (
        Call(2, 3, 4, (2,), (9,), (1,), ((4, 5),), (3,), (1,)),
        "conv_dgrad swapped",
    ),
    "transposed, by the kernel": (
        Call(3, 2, 4, (5,), (9,), (1,), ((1, 1),), (2,), (1,)),
        "conv_wgrad swapped",
    ),
    "transposed, by the kernel, groups": (
        Call(3, 2, 4, (5, 4), (9, 7), (1, 2), ((1, 1), (2, 2)), (2, 2), (1, 1), batches=2),
        "conv_wgrad swapped",
    ),
    "lhs the kernel": (Call(2, 3, 4, (2,), (9,), (3,), ((8, 7),), (2,), (1,)), "conv_fwd swapped"),
    "one element is not spread": (Call(2, 3, 4, (1,), (2,), (2,), ((3, 4),), (3,), (2,)), "conv_fwd"),
    "one output takes no step": (Call(2, 3, 4, (5,), (3,), (3,), ((0, -4),), (2,), (2,)), "conv_dgrad"),
    "axes that disagree": (Call(2, 3, 4, (5, 9), (3, 3), (1, 2), ((2, 2),) * 2, (2, 1), (2, 2)), None),
    "both on one axis": (Call(2, 3, 4, (5,), (3,), (3,), ((2, 2),), (2,), (2,)), None),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ROWS)
def test_rows_of_the_table(name, dtype):
    call, primitive = ROWS[name]
    call = dataclasses.replace(call, dtype=dtype)
    assert lax_calls.chosen(call) == primitive
    lax_calls.check(call, jcc.lax.conv_general_dilated)


LAYOUTS = {
    1: ("NCW-OIW-NCW", "NWC-WIO-NWC", "CWN-IWO-WNC", "NWC-OWI-NCW"),
    2: (None, "NHWC-HWIO-NHWC", "NHWC-OHWI-NCHW", "NWHC-WHIO-NHWC", "HWNC-HWIO-WHCN"),
}


@pytest.mark.parametrize(("rank", "layout"), [(r, x) for r, all_ in LAYOUTS.items() for x in all_])
def test_layouts_in_every_form(rank, layout, rng):
    """Strings, None and `ConvDimensionNumbers`, with spatial axes in any order."""
    shapes = {"N": 2, "C": 4, "I": 2, "O": 6, "H": 7, "W": 8}
    kernel = shapes | {"H": 3, "W": 2}
    layout = layout and tuple(layout.split("-"))
    names = layout or ("NCHW", "OIHW", "NCHW")
    lhs = rng.integers(-4, 5, [shapes[c] for c in names[0]]).astype(np.float64)
    rhs = rng.integers(-4, 5, [kernel[c] for c in names[1]]).astype(np.float64)
    strides, pads = (2, 1)[:rank], ((1, 2), (0, -1))[:rank]
    for form in (layout, lax.conv_dimension_numbers(lhs.shape, rhs.shape, layout)):
        call = (lhs, rhs, strides, pads, None, None, form, 2)
        harness.assert_equal(jcc.lax.conv_general_dilated(*call), lax.conv_general_dilated(*call))


@pytest.mark.parametrize("padding", ["SAME", "SAME_LOWER", "VALID", "same"])
def test_string_padding(padding, rng):
    lhs, rhs = (rng.integers(-4, 5, s).astype(np.float64) for s in ((2, 3, 9, 8), (4, 3, 2, 3)))
    call = (lhs, rhs, (2, 3), padding, None, (3, 1))
    harness.assert_equal(jcc.lax.conv_general_dilated(*call), lax.conv_general_dilated(*call))


def value_and_gradients(function, lhs, rhs, *call):
    def loss(lhs, rhs):
        out = function(lhs, rhs, *call)
        return jnp.sum(out**2), out

    (_, out), gradients = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(lhs, rhs)
    return out, *gradients


@pytest.mark.parametrize("transpose_kernel", [False, True])
@pytest.mark.parametrize("padding", ["SAME", "VALID", ((1, 2), (-1, 3))])
@pytest.mark.parametrize("layout", [None, ("NCHW", "OIHW", "NHWC")])
def test_conv_transpose(padding, transpose_kernel, layout, rng):
    channels = 3, 2, 4
    lhs_shape, rhs_shape = (2, 5, 4, channels[0]), (3, 4, *channels[:2])
    if layout:
        lhs_shape, rhs_shape = (2, 3, 5, 4), (2, 3, 3, 4)
    if transpose_kernel:
        rhs_shape = (3, 4, 2, 3) if layout is None else (3, 2, 3, 4)
    lhs, rhs = (rng.integers(-4, 5, s).astype(np.float64) for s in (lhs_shape, rhs_shape))
    for strides, dilation in (((2, 3), None), ((2, 1), (1, 3))):
        call = (strides, padding, dilation, layout, transpose_kernel)
        ours, theirs = (
            value_and_gradients(function, lhs, rhs, *call)
            for function in (jcc.lax.conv_transpose, lax.conv_transpose)
        )
        for a, b in zip(ours, theirs, strict=True):
            harness.assert_equal(a, b)


def test_a_transposed_kernel_is_not_reversed():
    """The transpose of a convolution is one primitive, without `rev`, and so are its gradients."""
    x, w = np.ones((8, 28, 28, 4), np.float32), np.ones((3, 3, 4, 4), np.float32)  # C48, fewer channels

    def loss(x, w):
        return jnp.sum(jcc.lax.conv_transpose(x, w, (2, 2), "SAME", transpose_kernel=True) ** 2)

    assert harness.count_primitives(loss, x, w) == {"conv_dgrad": 1}
    gradients = jax.grad(loss, (0, 1))
    assert "rev[" not in str(jax.make_jaxpr(gradients)(x, w))
    assert harness.count_primitives(gradients, x, w) == {"conv_fwd": 1, "conv_dgrad": 1, "conv_wgrad": 1}


def transposed(x, w, s, padding, **more):
    """`jcc.lax.conv_transpose` of one channel in one dimension, in float32."""
    x, w = (np.asarray(a, np.float32) for a in (x, w))
    return jcc.lax.conv_transpose(x[None, :, None], w[:, None, None], (s,), padding, **more)[0, :, 0]


def test_c03_numbers_pad_the_spread_input():
    w = np.arange(1, 5)
    for pads, length in (((0, 0), 10), ((1, 1), 12)):
        assert transposed(np.arange(4), w, 4, (pads,)).shape == (length,)
    if "use_consistent_padding" in inspect.signature(lax.conv_transpose).parameters:
        for pads, length in (((0, 0), 16), ((1, 1), 14)):
            more = {"use_consistent_padding": True}
            assert transposed(np.arange(4), w, 4, (pads,), **more).shape == (length,)


def test_c04_the_kernel_is_reversed_on_demand():
    assert transposed([1, 0], [1, 2, 3], 2, "VALID").tolist() == [3, 2, 1, 0, 0]
    assert transposed([1, 0], [1, 2, 3], 2, "VALID", transpose_kernel=True).tolist() == [1, 2, 3, 0, 0]


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
def test_c09_same_of_the_transpose(k, s, length, expected):
    x, w = np.arange(1, length + 1), np.arange(1, k + 1)
    assert transposed(x, w, s, "SAME", transpose_kernel=True).tolist() == expected


def test_c48_the_gradient_of_a_transpose_by_its_kernel():
    """As JAX differentiates it, too, it is the primitive for it and not a forward convolution."""
    x, w = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 28, 28, 64), (3, 3, 64, 64)))

    def loss(x, w):
        return jnp.sum(lax.conv_transpose(x, w, (2, 2), "SAME"))

    found = sorted(map(lax_calls.of_equation, lax_calls.convolutions(jax.grad(loss, (0, 1)), x, w)))
    assert found == ["conv_dgrad", "conv_fwd", "conv_wgrad swapped"]


X, W = np.ones((2, 4, 9, 8), np.float32), np.ones((6, 4, 3, 3), np.float32)
BAD = {
    "padding name": (X, W, (1, 1), "FULL"),
    "padding number": (X, W, (1, 1), 1),
    "padding length": (X, W, (1, 1), ((0, 0),)),
    "strides": (X, W, (1,), "SAME"),
    "rank": (X[0], W, (1, 1), "SAME"),
    "dtypes": (X, W.astype(np.float64), (1, 1), "SAME"),
    "features": (X[:, :3], W, (1, 1), "SAME"),
    "groups": (X, W, (1, 1), "SAME", None, None, None, 3),
    "no groups": (X, W, (1, 1), "SAME", None, None, None, 0),
    "batch groups": (X, W, (1, 1), "SAME", None, None, None, 1, 4),
    "both groups": (X, W[:, :2], (1, 1), "SAME", None, None, None, 2, 2),
    "lhs dilation": (X, W, (1, 1), "SAME", (2, 2)),
    "layout": (X, W, (1, 1), "SAME", None, None, ("NCHW", "OIHW")),
    "letters": (X, W, (1, 1), "SAME", None, None, ("NCHW", "OIHX", "NCHW")),
    "crop": (X, W, (1, 1), ((-9, -9), (0, 0))),
    "precision": (X, W, (1, 1), "SAME", None, None, None, 1, 1, "exact"),
    "preferred": (X, W, (1, 1), "SAME", None, None, None, 1, 1, None, np.int8),
    "list": ([[1.0]], W, (1, 1), "SAME"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_raise_what_jax_raises(name):
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        lax.conv_general_dilated(*BAD[name])
    with pytest.raises(type(theirs.value)) as ours:
        jcc.lax.conv_general_dilated(*BAD[name])
    assert str(ours.value).splitlines()[0] == str(theirs.value).splitlines()[0]


@pytest.mark.parametrize(
    ("dtype", "preferred"),
    [("bfloat16", None), ("bfloat16", "float32"), ("int8", "int32"), ("int8", None), ("complex64", None)]
    + [("float32", "float64"), ("float16", "float16"), ("int16", "float32")],
)
def test_dtypes(dtype, preferred, rng):
    lhs, rhs = (jnp.asarray(rng.integers(-4, 5, s), dtype) for s in ((2, 3, 7), (4, 3, 3)))
    more = {"lhs_dilation": (2,), "preferred_element_type": preferred}
    call = (lhs, rhs, (1,), ((1, 2),))
    harness.assert_equal(jcc.lax.conv_general_dilated(*call, **more), lax.conv_general_dilated(*call, **more))
