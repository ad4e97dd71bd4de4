"""What the layers of `nnx` and `linen` have in common. Nothing here imports flax.

Flax's layers are channels last, take any number of batch axes, and pad in three more ways than a
convolution: CIRCULAR, REFLECT and CAUSAL. A transposed layer with one of those is the transpose of the
layer that pads so and convolves.
"""

import functools
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
    layer: Any, inputs: jax.Array, kernel: jax.Array, bias: jax.Array | None, output_shape: Any
) -> jax.Array:
    """What a layer ``ConvTranspose``, of either kind, computes of inputs ``(*batch, *spatial, features)``.

    ``output_shape`` is that of the call; None: the layer's, or its ``output_padding``.
    """
    rank, groups = kernel.ndim - 2, layer.feature_group_count
    if inputs.ndim < rank + 1:
        raise ValueError(
            f"inputs must have {rank} spatial axes and one of features, after any number of batch axes; "
            f"got shape {inputs.shape}"
        )
    strides = args.per_axis("strides", 1 if layer.strides is None else layer.strides, rank)
    dilation = 1 if layer.kernel_dilation is None else layer.kernel_dilation
    dilation = args.per_axis("kernel_dilation", dilation, rank)
    if not layer.transpose_kernel:
        kernel = _transpose_kernel(kernel, groups)
    batch, example = inputs.shape[: -rank - 1], inputs.shape[-rank - 1 :]
    x = inputs.reshape((math.prod(batch), *example))
    transpose = functools.partial(
        _api.conv_transpose,
        x,
        kernel,
        strides=strides,
        dilation=dilation,
        groups=groups,
        dimension_numbers=_dims(rank),
        precision=layer.precision,
        preferred_element_type=layer.preferred_element_type,
    )
    spans = tuple(map(effective_kernel, kernel.shape[:rank], dilation))
    padding = layer.padding
    output_padding = layer.output_padding if output_shape is None else None
    output_shape = layer.output_shape if output_shape is None else output_shape
    mode = padding.upper() if isinstance(padding, str) else None
    if mode == "CAUSAL" or mode in _WRAPPED:
        if output_padding is not None:
            raise ValueError(f"output_padding cannot be given with padding {padding!r}; give output_shape")
        output_shape = _extents(x.shape[1:-1], strides, output_shape, padding)
    if mode in _WRAPPED:
        centred = mode == "REFLECT" or layer.transpose_kernel
        pads = _wrapped_pads(spans, strides, centred)
        y = _transpose_wrapped(transpose, _WRAPPED[mode], output_shape, pads)
    else:
        padding = _transposed_padding(padding, spans, layer.use_consistent_padding)
        y = transpose(padding=padding, output_padding=output_padding, output_shape=output_shape)
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


def _transposed_padding(padding: PaddingLike, spans: Ints, consistent: bool) -> str | Pads:
    """The padding of the convolution that is transposed."""
    if isinstance(padding, str) and padding.upper() == "CAUSAL":
        if len(spans) != 1:
            raise ValueError(f"padding 'CAUSAL' wants one spatial axis; got {len(spans)}")
        return ((spans[0] - 1, 0),)
    pads = args.padding(padding, len(spans))
    if isinstance(pads, str) or consistent:
        return pads
    # They are pads of the input, after it was spread by the strides.
    return tuple((s - 1 - low, s - 1 - high) for s, (low, high) in zip(spans, pads, strict=True))


def _wrapped_pads(spans: Ints, strides: Ints, centred: bool) -> Pads:
    """What CIRCULAR and REFLECT add: low half of it, unless a kernel that is not transposed is CIRCULAR."""
    low = [(span - 1) // 2 for span in spans]
    if not centred:  # Flax aligns that kernel with the strides
        low = [max(span - s, 0) // 2 for span, s in zip(spans, strides, strict=True)]
    return tuple((lo, span - 1 - lo) for lo, span in zip(low, spans, strict=True))


def _transpose_wrapped(
    transpose: Callable[..., jax.Array], mode: str, extents: Ints, pads: Pads
) -> jax.Array:
    """The transpose of padding by ``mode``, as jnp.pad has it, then convolving without padding."""
    padded = tuple(e + low + high for e, (low, high) in zip(extents, pads, strict=True))
    y = transpose(padding=0, output_shape=padded)
    unpadded = jax.ShapeDtypeStruct((y.shape[0], *extents, y.shape[-1]), y.dtype)
    (folded,) = jax.linear_transpose(lambda a: jnp.pad(a, ((0, 0), *pads, (0, 0)), mode), unpadded)(y)
    return folded
