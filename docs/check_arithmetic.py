"""Checks the numbers of arithmetic.md against the frameworks themselves, on a CPU.

pip install flax torch keras
python docs/check_arithmetic.py
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import flax
import flax.linen as nn
import jax
import keras
import numpy as np
import torch
import torch.nn.functional as F
from jax import lax

import jax_cudnn_conv as jcc

DIMS = ("NWC", "WIO", "NWC")


def ints(a):
    return np.asarray(a).astype(int).ravel().tolist()


def wide(values, taps):
    """x as (1, L, 1) and w as (K, 1, 1)."""
    return np.float32(values).reshape(1, -1, 1), np.float32(taps).reshape(-1, 1, 1)


def here(x, w, transpose=False, **keywords):
    return ints((jcc.conv_transpose if transpose else jcc.conv)(*wide(x, w), **keywords))


def in_lax(x, w, s, padding, d=1, transpose=None):
    """``transpose``: None for a convolution, else what `lax.conv_transpose` calls transpose_kernel."""
    common = {"rhs_dilation": (d,), "dimension_numbers": DIMS}
    if transpose is None:
        return ints(lax.conv_general_dilated(*wide(x, w), (s,), padding, **common))
    return ints(lax.conv_transpose(*wide(x, w), (s,), padding, transpose_kernel=transpose, **common))


def in_flax(x, w, s, padding, d=1, transpose=None):
    x, w = wide(x, w)
    more = {"strides": (s,), "padding": padding, "kernel_dilation": (d,), "use_bias": False}
    if transpose is None:
        layer = nn.Conv(1, w.shape[:1], **more)
    else:
        layer = nn.ConvTranspose(1, w.shape[:1], transpose_kernel=transpose, **more)
    return ints(layer.apply({"params": {"kernel": w}}, x))


def in_torch(x, w, transpose=False, **keywords):
    x, w = (torch.tensor(a, dtype=torch.float32).reshape(1, 1, -1) for a in (x, w))
    return ints((F.conv_transpose1d if transpose else F.conv1d)(x, w, **keywords))


def in_keras(x, w, s, padding, transpose=False, d=1, **more):
    x, w = wide(x, w)
    layer = keras.layers.Conv1DTranspose if transpose else keras.layers.Conv1D
    layer = layer(1, len(w), strides=s, padding=padding, dilation_rate=d, use_bias=False, **more)
    layer.build(x.shape)
    layer.set_weights([w])
    return ints(layer(x))


def equal(*values):
    assert all(value == values[0] for value in values), values


def refused(function, *args, **keywords):
    try:
        function(*args, **keywords)
    except RuntimeError:
        return
    raise AssertionError("not refused")


def convolution():
    for L, K, s, d, padding, pads, extent in (
        (10, 3, 1, 1, "VALID", 0, 8),
        (10, 3, 2, 1, "VALID", 0, 4),
        (10, 3, 1, 1, "SAME", 1, 10),
        (10, 3, 2, 1, "SAME", None, 5),
        (10, 3, 2, 1, 1, 1, 5),
        (10, 3, 1, 4, "SAME", 4, 10),
        (10, 3, 1, 4, "VALID", 0, 2),
        (10, 1, 3, 1, "SAME", 0, 4),
    ):
        x, w = range(1, L + 1), range(1, K + 1)
        y = here(x, w, strides=s, padding=padding, dilation=d)
        assert len(y) == extent
        if pads is not None:  # even ones are PyTorch's too
            equal(y, in_torch(x, w, stride=s, padding=pads, dilation=d))
        if isinstance(padding, str):
            equal(y, in_lax(x, w, s, padding, d), in_keras(x, w, s, padding.lower(), d=d))
        equal(y, in_flax(x, w, s, padding, d))
    for padding, extent, s, d in (
        ("SAME_LOWER", 5, 2, 1),
        ([(1, 0)], 5, 2, 1),
        ([(8, 0)], 10, 1, 4),
        ([(-1, -1)], 6, 1, 1),
    ):
        y = here(range(10), (1, 2, 3), strides=s, padding=padding, dilation=d)
        assert len(y) == extent
        equal(y, in_lax(range(10), (1, 2, 3), s, padding, d))
    equal([], here((1, 2), (1, 2, 3), padding=0), in_lax((1, 2), (1, 2, 3), 1, "VALID"))
    refused(in_torch, (1, 2), (1, 2, 3))

    x, w, v = (1, 2, 3, 4), (1, 10, 100), (1, 10)
    equal([321, 43], here(x, w, strides=2), in_lax(x, w, 2, "SAME"), in_flax(x, w, 2, "SAME"))
    equal([321, 43], in_keras(x, w, 2, "same"))
    equal([210, 432], here(x, w, strides=2, padding=1), in_torch(x, w, stride=2, padding=1))
    refused(in_torch, x, w, stride=2, padding="same")
    equal([21, 32, 43, 4], here(x, v), in_torch(x, v, padding="same"), in_keras(x, v, 1, "same"))
    equal([100, 210, 321, 432], in_flax(x, w, 1, "CAUSAL"), in_keras(x, w, 1, "causal"))
    equal([10, 20, 31, 42], in_flax(x, v, 1, "CAUSAL", 2), in_keras(x, v, 1, "causal", d=2))
    equal([31, 42], in_torch(x, v, dilation=2), in_keras(x, v, 1, "valid", d=2))
    refused(in_torch, (1, 2, 3, 4, 5), v, padding=-1)


def transposed_sizes():
    for L, K, s, d, p, op, ours, lax_extent in (
        (2, 2, 3, 1, 0, 0, 5, 3),
        (4, 4, 4, 1, 0, 0, 16, 10),
        (4, 4, 4, 1, 1, 0, 14, 12),
        (4, 3, 2, 1, 1, 0, 7, 7),
        (4, 3, 2, 1, 1, 1, 8, None),
        (3, 3, 2, 2, 1, 0, 7, 3),
        (3, 3, 2, 2, 1, 1, 8, None),
        (4, 2, 1, 3, 0, 2, 9, None),
    ):
        x, w = range(1, L + 1), range(1, K + 1)
        y = here(x, w, True, strides=s, padding=p, dilation=d, output_padding=op)
        assert len(y) == ours
        equal(y, in_torch(x, w, True, stride=s, padding=p, dilation=d, output_padding=op))
        if lax_extent is not None:
            theirs = in_lax(x, w, s, [(p, p)], d, False)
            assert len(theirs) == lax_extent, len(theirs)
            equal(theirs, in_flax(x, w, s, p, d, False))
            consistent = lax.conv_transpose(
                *wide(x, w), (s,), [(p, p)], rhs_dilation=(d,), dimension_numbers=DIMS,
                transpose_kernel=True, use_consistent_padding=True,
            )  # fmt: skip
            equal(y, ints(consistent))
            reach = d * (K - 1)
            flipped = here(x, w[::-1], True, strides=s, padding=reach - p, dilation=d)
            equal(theirs, flipped)
    refused(in_torch, (1, 2, 3, 4), (1, 10), True, output_padding=1)
    refused(in_torch, (1,), (1, 10), True, padding=-1)


def transposed_values():
    for K, s, L, same, valid, zero in (
        (2, 1, 2, "1 4", "1 4 4", "1 4 4"),
        (3, 1, 3, "4 10 12", "1 4 10 12 9", "1 4 10 12 9"),
        (3, 2, 2, "1 2 5 4", "1 2 5 4 6", "1 2 5 4 6"),
        (4, 2, 3, "2 5 8 9 14 9", "1 2 5 8 9 14 9 12", "1 2 5 8 9 14 9 12"),
        (2, 3, 2, "1 2 0 2 4 0", "1 2 0 2 4 0", "1 2 0 2 4"),
        (1, 3, 2, "1 0 0 2 0 0", "1 0 0 2 0 0", "1 0 0 2"),
        (3, 2, 4, "1 2 5 4 9 6 13 8", "1 2 5 4 9 6 13 8 12", "1 2 5 4 9 6 13 8 12"),
    ):
        x, w = range(1, L + 1), range(1, K + 1)
        same, valid, zero = (list(map(int, text.split())) for text in (same, valid, zero))
        equal(same, here(x, w, True, strides=s), in_lax(x, w, s, "SAME", transpose=True))
        equal(same, in_flax(x, w, s, "SAME", transpose=True), in_keras(x, w, s, "same", True))
        equal(valid, here(x, w, True, strides=s, padding="VALID"), in_keras(x, w, s, "valid", True))
        equal(valid, in_lax(x, w, s, "VALID", transpose=True))
        equal(zero, here(x, w, True, strides=s, padding=0), in_torch(x, w, True, stride=s))
    x, w = (1, 0), (1, 2, 3)
    equal([1, 2, 3, 0, 0], in_torch(x, w, True, stride=2), in_keras(x, w, 2, "valid", True))
    equal([3, 2, 1, 0, 0], in_lax(x, w, 2, "VALID", 1, False), in_flax(x, w, 2, "VALID", 1, False))
    x = (1, 2)
    equal([2, 5, 4, 6], in_torch(x, w, True, stride=2, padding=1, output_padding=1))
    equal([1, 2, 5, 4], in_keras(x, w, 2, "same", True), in_keras(x, w, 2, "same", True, output_padding=1))
    equal(
        [2, 5, 4],
        in_keras(x, w, 2, "same", True, output_padding=0),
        here(x, w, True, strides=2, output_shape=(3,)),
    )
    v = (1, 2, 3, 4)  # K = 4, s = 2
    equal(here(x, v, True, strides=2), in_torch(x, v, True, stride=2, padding=1))
    equal([5, 0, 0, 5, 0, 0], in_torch((1, 1), (5,), True, stride=3, output_padding=2))
    y = F.conv_transpose2d(torch.ones(1, 1, 1, 1), torch.arange(1.0, 10.0).reshape(1, 1, 3, 3), None, 2, 1, 1)
    equal([5, 6, 8, 9], ints(y))


def layouts():
    rng = np.random.default_rng(0)

    def array(*shape):
        return rng.integers(-3, 4, shape).astype(np.float32)

    x, names = array(2, 4, 5, 6), ("NCHW", "OIHW", "NCHW")
    layer = torch.nn.Conv2d(4, 6, (3, 2), groups=2)
    assert tuple(layer.weight.shape) == (6, 2, 3, 2)
    w = array(6, 2, 3, 2)
    theirs = F.conv2d(torch.tensor(x), torch.tensor(w), padding=(1, 0), groups=2)
    equal(ints(theirs), ints(jcc.conv(x, w, padding=(1, 0), groups=2, dimension_numbers=names)))
    layer = torch.nn.ConvTranspose2d(4, 6, (3, 2), groups=2)
    assert tuple(layer.weight.shape) == (4, 3, 3, 2)
    w = array(4, 3, 3, 2)
    more = {"padding": (1, 0), "output_padding": (1, 2), "groups": 2}
    theirs = F.conv_transpose2d(torch.tensor(x), torch.tensor(w), stride=(2, 3), **more)
    equal(ints(theirs), ints(jcc.conv_transpose(x, w, strides=(2, 3), dimension_numbers=names, **more)))

    x = x.transpose(0, 2, 3, 1)
    for padding in ("same", "valid"):
        layer = keras.layers.Conv2DTranspose(7, (3, 2), strides=2, padding=padding, use_bias=False)
        layer.build(x.shape)
        assert layer.kernel.shape == (3, 2, 7, 4)
        w = array(3, 2, 7, 4)
        layer.set_weights([w])
        equal(ints(layer(x)), ints(jcc.conv_transpose(x, w, strides=2, padding=padding)))
        layer = nn.ConvTranspose(7, (3, 2), (2, 2), padding.upper(), use_bias=False, transpose_kernel=True)
        theirs = layer.apply({"params": {"kernel": w}}, x)
        equal(ints(theirs), ints(jcc.conv_transpose(x, w, strides=2, padding=padding)))
        w = array(3, 2, 4, 7)
        layer = nn.ConvTranspose(7, (3, 2), (2, 2), padding.upper(), use_bias=False)
        theirs = layer.apply({"params": {"kernel": w}}, x)
        w = np.flip(w, (0, 1)).swapaxes(2, 3)
        equal(ints(theirs), ints(jcc.conv_transpose(x, w, strides=2, padding=padding)))


if __name__ == "__main__":
    for check in (convolution, transposed_sizes, transposed_values, layouts):
        check()
    versions = {"jax": jax, "flax": flax, "torch": torch, "keras": keras}
    print("all equal:", ", ".join(f"{name} {module.__version__}" for name, module in versions.items()))
