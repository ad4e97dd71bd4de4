"""What the layers of `nnx` and `linen` have in common. Nothing here imports flax.

Flax's layers are channels last, take any number of batch axes, and pad in three more ways than a
convolution: CIRCULAR, REFLECT and CAUSAL. A transposed layer with one of those is the transpose of the
layer that pads so and convolves.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax as _lax
from jax.nn import initializers

from jax_cudnn_conv import _api
from jax_cudnn_conv import _arguments as args
from jax_cudnn_conv._arguments import PaddingLike
from jax_cudnn_conv._spec import Ints, Pads, effective_kernel

Initializer = Callable[..., jax.Array]

_WRAPPED = {"CIRCULAR": "wrap", "REFLECT": "reflect"}  # how jnp.pad calls them


def kernel_size(value: int | Sequence[int]) -> Ints:
    """Flax's ``kernel_size``: a single integer means one spatial axis."""
    entries = (value,) if isinstance(value, int) else tuple(value)
    return tuple(args.integer(f"kernel_size[{k}]", entry, 1) for k, entry in enumerate(entries))


def transposed_kernel_shape(
    taps: Ints, in_features: int, out_features: int, groups: int, transpose_kernel: bool
) -> Ints:
    """``(*taps, in/groups, out)``; ``(*taps, out/groups, in)`` for ``transpose_kernel``."""
    groups = args.integer("feature_group_count", groups, 1)
    if in_features % groups or out_features % groups:
        raise ValueError(
            f"feature_group_count must divide the input and the output features; got {groups}, "
            f"{in_features} and {out_features}"
        )
    if transpose_kernel:
        return (*taps, out_features // groups, in_features)
    return (*taps, in_features // groups, out_features)


def transposed_kernel_init(groups: int, transpose_kernel: bool) -> Initializer:
    """LeCun's normal, whose variance is one over the kernel elements that each output sums.

    Those are ``taps * in/groups`` in either layout; an initialiser that takes the last axis but one for
    the inputs would count ``taps * out/groups`` for ``transpose_kernel``.
    """
    if not transpose_kernel:
        return initializers.lecun_normal()
    # The last axis holds the inputs of all groups.
    return initializers.variance_scaling(groups, "fan_in", "truncated_normal", in_axis=-1, out_axis=-2)


def check_mask(mask: Any, shape: Ints) -> None:
    """Check that a mask has the kernel's ``shape``."""
    if mask is not None and mask.shape != shape:
        raise ValueError(f"mask must have the shape {shape} of the kernel; got {mask.shape}")


def conv_transpose(
    inputs: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    *,
    strides: Any,
    padding: PaddingLike,
    kernel_dilation: Any,
    groups: int,
    output_padding: Any,
    output_shape: Any,
    transpose_kernel: bool,
    use_consistent_padding: bool,
    precision: Any,
    preferred_element_type: Any,
) -> jax.Array:
    """What a layer ``ConvTranspose`` computes, of inputs ``(*batch, *spatial, features)``."""
    rank = kernel.ndim - 2
    if inputs.ndim < rank + 1:
        raise ValueError(
            f"inputs must have {rank} spatial axes and one of features, after any number of batch axes; "
            f"got shape {inputs.shape}"
        )
    strides = args.per_axis("strides", 1 if strides is None else strides, rank)
    dilation = args.per_axis("kernel_dilation", 1 if kernel_dilation is None else kernel_dilation, rank)
    if not transpose_kernel:
        kernel = _transpose_kernel(kernel, groups)
    batch, example = inputs.shape[: -rank - 1], inputs.shape[-rank - 1 :]
    x = inputs.reshape((math.prod(batch), *example))
    geometry = {"strides": strides, "dilation": dilation, "groups": groups}
    geometry |= {"precision": precision, "preferred_element_type": preferred_element_type}
    spans = tuple(map(effective_kernel, kernel.shape[:rank], dilation))
    mode = padding.upper() if isinstance(padding, str) else None
    if mode == "CAUSAL" or mode in _WRAPPED:
        if output_padding is not None:
            raise ValueError(f"output_padding cannot be given with padding {padding!r}; give output_shape")
        extents = _extents(x.shape[1:-1], strides, output_shape, padding)
        y = _transpose_padded(x, kernel, mode, extents, spans, transpose_kernel, geometry)
    else:
        pads = args.padding(padding, rank)
        if (
            not isinstance(pads, str) and not use_consistent_padding
        ):  # pads of the input, spread by the strides
            pads = tuple((s - 1 - low, s - 1 - high) for s, (low, high) in zip(spans, pads, strict=True))
        sizes = {"output_padding": output_padding, "output_shape": output_shape}
        y = _api.conv_transpose(x, kernel, padding=pads, dimension_numbers=_dims(rank), **sizes, **geometry)
    if bias is not None:
        y += bias
    return y.reshape((*batch, *y.shape[1:]))


def _dims(rank: int) -> _lax.ConvDimensionNumbers:
    spatial = tuple(range(1, rank + 1))
    return _lax.ConvDimensionNumbers(
        (0, rank + 1, *spatial), (rank + 1, rank, *range(rank)), (0, rank + 1, *spatial)
    )


def _transpose_kernel(kernel: jax.Array, groups: int) -> jax.Array:
    """``(*taps, in/groups, out)``, not reversed, to ``(*taps, out/groups, in)``, reversed."""
    *taps, inputs, out = kernel.shape
    kernel = jnp.flip(kernel, range(len(taps))).reshape((*taps, inputs, groups, out // groups))
    return jnp.moveaxis(kernel, -1, -3).swapaxes(-1, -2).reshape((*taps, out // groups, groups * inputs))


def _extents(spatial: Ints, strides: Ints, output_shape: Any, padding: PaddingLike) -> Ints:
    """The extents that a convolution which keeps ``ceil(extent / stride)`` elements maps to ``spatial``."""
    if output_shape is None:
        return tuple(length * s for length, s in zip(spatial, strides, strict=True))
    extents = args.shape("output_shape", output_shape, len(spatial))
    reached = tuple(-(-e // s) for e, s in zip(extents, strides, strict=True))
    if reached != spatial:
        raise ValueError(
            f"output_shape must be extents that a {padding} convolution maps to {spatial}; got {extents}, "
            f"which it maps to {reached}"
        )
    return extents


def _transpose_padded(
    x: jax.Array, kernel: jax.Array, mode: str, extents: Ints, spans: Ints, centred: bool, geometry: Any
) -> jax.Array:
    """The transpose of padding by ``mode``, then convolving without padding."""
    rank = len(extents)
    low: Ints
    if mode == "CAUSAL":
        if rank != 1:
            raise ValueError(f"padding 'CAUSAL' wants one spatial axis; got {rank}")
        low = (spans[0] - 1,)
    elif mode == "CIRCULAR" and not centred:
        # Flax aligns its kernel, which is not that of a transposed convolution, with the strides.
        low = tuple(max(span - s, 0) // 2 for span, s in zip(spans, geometry["strides"], strict=True))
    else:
        low = tuple((span - 1) // 2 for span in spans)
    pads: Pads = tuple((lo, span - 1 - lo) for lo, span in zip(low, spans, strict=True))
    if mode == "CAUSAL":
        return _api.conv_transpose(
            x,
            kernel,
            padding=((pads[0][0], 0),),
            output_shape=extents,
            dimension_numbers=_dims(1),
            **geometry,
        )
    padded = tuple(e + lo + hi for e, (lo, hi) in zip(extents, pads, strict=True))
    y = _api.conv_transpose(
        x, kernel, padding=0, output_shape=padded, dimension_numbers=_dims(rank), **geometry
    )
    unpadded = jax.ShapeDtypeStruct((y.shape[0], *extents, y.shape[-1]), y.dtype)

    def pad(a):
        return jnp.pad(a, ((0, 0), *pads, (0, 0)), _WRAPPED[mode])

    (folded,) = jax.linear_transpose(pad, unpadded)(y)
    return folded
