"""An independent oracle: convolution and its two adjoints as NumPy loops over the kernel taps.

It knows nothing of JAX. Arrays have logical layout, x (N, G*I, *spatial), w (G*O, I, *kernel) and
y (N, G*O, *spatial'), with any number of spatial axes. One index relation defines everything:

    the tap t of output o reads input  o*stride + t*dilation - lo

Padding is never materialised: a tap that falls outside x contributes nothing, so negative (cropping) pads,
pads larger than the input and zero extents need no special case. All in float64, int64 or complex128.
"""

import itertools
import math

import numpy as np


def conv_extent(x, k, stride, pads, dilation):
    """The output extent of a convolution along one axis; 0 where the kernel exceeds the padded input."""
    return max((x + pads[0] + pads[1] - dilation * (k - 1) - 1) // stride + 1, 0)


def deconv_extent(y, k, stride, pads, dilation, output_padding=0):
    """The output extent of a transposed convolution along one axis."""
    return (y - 1) * stride + dilation * (k - 1) + 1 - pads[0] - pads[1] + output_padding


def same_pads(x, k, stride, dilation, lower=False):
    """The (lo, hi) pads of "SAME" (or "SAME_LOWER"): output ceil(x/stride), the odd unit high (low)."""
    y = -(-x // stride)
    total = max((y - 1) * stride + dilation * (k - 1) + 1 - x, 0)
    small, large = total // 2, total - total // 2
    return (large, small) if lower else (small, large)


def conv(x, w, strides, pads, dilation, groups=1):
    """y from x and w."""
    y_extents = map(conv_extent, x.shape[2:], w.shape[2:], strides, pads, dilation)
    x, w = _split(x, 1, groups), _split(w, 0, groups)
    y = np.zeros((x.shape[0], groups, w.shape[1], *y_extents), _accumulator(x, w))
    for tap, x_at, y_at in _taps(x.shape[3:], w.shape[3:], y.shape[3:], strides, pads, dilation):
        y[y_at] += np.einsum("ngi...,goi->ngo...", x[x_at].astype(y.dtype), w[tap].astype(y.dtype))
    return _merge(y, 1)


def conv_dx(y, w, x_extents, strides, pads, dilation, groups=1):
    """The adjoint of `conv` in x: x from y and w. `x_extents` are x's spatial extents."""
    _check_extents(x_extents, w.shape[2:], y.shape[2:], strides, pads, dilation)
    y, w = _split(y, 1, groups), _split(w, 0, groups)
    x = np.zeros((y.shape[0], groups, w.shape[2], *x_extents), _accumulator(y, w))
    for tap, x_at, y_at in _taps(x.shape[3:], w.shape[3:], y.shape[3:], strides, pads, dilation):
        x[x_at] += np.einsum("ngo...,goi->ngi...", y[y_at].astype(x.dtype), w[tap].astype(x.dtype))
    return _merge(x, 1)


def conv_dw(x, y, w_extents, strides, pads, dilation, groups=1):
    """The adjoint of `conv` in w: w from x and y. `w_extents` are w's spatial extents."""
    _check_extents(x.shape[2:], w_extents, y.shape[2:], strides, pads, dilation)
    x, y = _split(x, 1, groups), _split(y, 1, groups)
    w = np.zeros((groups, y.shape[2], x.shape[2], *w_extents), _accumulator(x, y))
    for tap, x_at, y_at in _taps(x.shape[3:], w.shape[3:], y.shape[3:], strides, pads, dilation):
        a, b = x[x_at].astype(w.dtype), y[y_at].astype(w.dtype)
        w[tap] = np.einsum("ngip,ngop->goi", _flat(a), _flat(b))
    return _merge(w, 0)


def deconv(x, w, strides, pads, dilation, groups=1, output_padding=None):
    """The transposed convolution of x (N, G*O, *spatial) with w (G*O, I, *kernel), sized by `deconv_extent`.

    An output padding is a lower high pad of the convolution that is transposed.
    """
    op = output_padding or (0,) * len(strides)
    extents = tuple(map(deconv_extent, x.shape[2:], w.shape[2:], strides, pads, dilation, op))
    pads = [(lo, hi - extra) for (lo, hi), extra in zip(pads, op, strict=True)]
    return conv_dx(x, w, extents, strides, pads, dilation, groups)


def spatial_letters(rank):
    """The letters of `rank` spatial axes in dimension numbers."""
    return {0: "", 1: "W", 2: "HW", 3: "DHW"}.get(rank, "0123456789"[:rank])


def channels_last(rank):
    """The default dimension numbers, e.g. ("NHWC", "HWIO", "NHWC")."""
    letters = spatial_letters(rank)
    return f"N{letters}C", f"{letters}IO", f"N{letters}C"


def logical(dimension_numbers):
    """The dimension numbers of this module's layout, spatial axes in the kernel string's order as in lax."""
    letters = "".join(c for c in dimension_numbers[1] if c not in "IO")
    return "NC" + letters, "OI" + letters, "NC" + letters


def relayout(array, source, target):
    """`array` with its axes moved from the order of the string `source` to that of `target`."""
    return np.transpose(array, [source.index(c) for c in target])


def to_layout(role, array, dimension_numbers):
    """A logical array in the order that `dimension_numbers` gives to `role`: "x", "w" or "y"."""
    i = "xwy".index(role)
    return relayout(array, logical(dimension_numbers)[i], dimension_numbers[i])


def from_layout(role, array, dimension_numbers):
    """The inverse of `to_layout`."""
    i = "xwy".index(role)
    return relayout(array, dimension_numbers[i], logical(dimension_numbers)[i])


def _taps(x_extents, w_extents, y_extents, strides, pads, dilation):
    """For every kernel tap: its index into w (after G, O, I), and the slices of x and y that it connects."""
    axes = list(zip(x_extents, y_extents, strides, pads, dilation, strict=True))
    for tap in itertools.product(*map(range, w_extents)):
        x_at, y_at = [], []
        for t, (x, y, s, (lo, _), d) in zip(tap, axes, strict=True):
            offset = t * d - lo
            first = max(-(offset // s), 0)  # the smallest o >= 0 with o*s + offset >= 0
            last = min((x - 1 - offset) // s, y - 1)  # the largest o < y with o*s + offset < x
            count = max(last - first + 1, 0)
            y_at.append(slice(first, first + count))
            start = max(first * s + offset, 0)
            x_at.append(slice(start, start + (count - 1) * s + 1 if count else start, s))
        lead = (slice(None),) * 3
        yield (*lead, *tap), (*lead, *x_at), (*lead, *y_at)


def _split(array, axis, groups):
    extents = list(array.shape)
    return array.reshape(*extents[:axis], groups, extents[axis] // groups, *extents[axis + 1 :])


def _merge(array, axis):
    extents = list(array.shape)
    return array.reshape(*extents[:axis], math.prod(extents[axis : axis + 2]), *extents[axis + 2 :])


def _flat(array):
    return array.reshape(*array.shape[:3], math.prod(array.shape[3:]))


def _accumulator(a, b):
    return np.result_type(a.dtype, b.dtype, np.int64 if a.dtype.kind in "iub" else np.float64)


def _check_extents(x_extents, w_extents, y_extents, strides, pads, dilation):
    wanted = tuple(map(conv_extent, x_extents, w_extents, strides, pads, dilation))
    if wanted != tuple(y_extents):
        raise ValueError(
            f"a convolution of {x_extents} with {w_extents} gives {wanted}, not {tuple(y_extents)}"
        )
