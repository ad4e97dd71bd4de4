"""The three directions on XLA's own convolution: every platform, every dtype, any number of axes."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_cudnn_conv._primitives import FWD, Direction, result_shape
from jax_cudnn_conv._spec import ConvSpec, effective_kernel


def conv(
    lhs: Any, rhs: Any, *, direction: Direction, spec: ConvSpec, out_dtype: Any, precision: Any, **_: Any
) -> jax.Array:
    """Compute one direction: `lax`'s convolution, or its linear transpose in one operand."""
    shape = result_shape(direction, spec, lhs.shape, rhs.shape)
    if 0 in (*shape, *lhs.shape, *rhs.shape):
        return jnp.zeros(shape, out_dtype)
    compute = jnp.promote_types(lhs.dtype, rhs.dtype)
    if direction is not FWD or lhs.dtype != rhs.dtype or not jnp.issubdtype(out_dtype, jnp.floating):
        # lax transposes no widening convolution, and integers must not wrap before the sum.
        compute = jnp.promote_types(compute, out_dtype)
    lhs, rhs = lhs.astype(compute), rhs.astype(compute)
    preferred = jnp.promote_types(compute, out_dtype)

    def forward(x, w):
        return _forward(x, w, spec, precision, preferred)

    if direction is FWD:
        return forward(lhs, rhs).astype(out_dtype)
    result = jax.ShapeDtypeStruct(shape, compute)
    if direction.result == "x":
        (out,) = jax.linear_transpose(lambda x: forward(x, rhs), result)(lhs)
    else:
        (out,) = jax.linear_transpose(lambda w: forward(lhs, w), result)(rhs)
    return out.astype(out_dtype)


def _forward(x: Any, w: Any, spec: ConvSpec, precision: Any, dtype: Any) -> jax.Array:
    """lax's convolution, only ever with pads between zero and the kernel's reach.

    Then its transposes have no negative low pads either: XLA's CPU convolution reads the neighbouring row
    when a negative low pad meets a positive high one in f32 (seen in jaxlib 0.10.2).
    """
    inside, outside = [], [(0, 0, 0)] * x.ndim
    for axis, (low, high), k, d, s in zip(
        spec.x_dims[2:], spec.exact_padding(), spec.w_spatial, spec.dilation, spec.strides, strict=True
    ):
        reach = effective_kernel(k, d) - 1
        inner_low, inner_high = min(max(low, 0), reach), min(max(high, 0), reach)
        inside.append((inner_low, inner_high))
        unread = -s < high < 0  # less than a stride: no window fits there anyway
        outside[axis] = (low - inner_low, 0 if unread else high - inner_high, 0)
    if any(low or high for low, high, _ in outside):
        x = lax.pad(x, jnp.zeros((), x.dtype), outside)
    return lax.conv_general_dilated(
        x,
        w,
        window_strides=spec.strides,
        padding=inside,
        rhs_dilation=spec.dilation,
        dimension_numbers=lax.ConvDimensionNumbers(spec.x_dims, spec.w_dims, spec.y_dims),
        feature_group_count=spec.groups,
        precision=precision,
        preferred_element_type=dtype,
    )
