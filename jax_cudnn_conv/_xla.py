"""The three directions on XLA's own convolution: every platform, every dtype, any number of axes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jax_cudnn_conv import _compat
from jax_cudnn_conv._primitives import FWD, Direction, fold, result_shape, unfold
from jax_cudnn_conv._spec import ConvSpec, Pads, effective_kernel

_conv_general_dilated = lax.conv_general_dilated  # JAX's own, whatever may be put in its place later


def conv(
    lhs: Any,
    rhs: Any,
    *,
    direction: Direction,
    spec: ConvSpec,
    out_dtype: Any,
    precision: Any,
    compute_dtype: Any = None,
    **_: Any,
) -> jax.Array:
    """Compute one direction, in float64 if ``compute_dtype`` says so."""
    if compute_dtype == jnp.float64:
        with _compat.enable_x64(True):
            wide = conv(
                lhs.astype(compute_dtype),
                rhs.astype(compute_dtype),
                direction=direction,
                spec=spec,
                out_dtype=compute_dtype,
                precision=precision,
            )
            return wide.astype(out_dtype)
    if spec.rank == 0:  # XLA's grouped convolution without a spatial axis is wrong in jaxlib 0.7.2
        lifted = _with_unit_axis(spec)
        types = {"out_dtype": out_dtype, "precision": precision}
        return conv(lhs[..., None], rhs[..., None], direction=direction, spec=lifted, **types)[..., 0]
    shape = result_shape(direction, spec, lhs.shape, rhs.shape)
    if 0 in (*shape, *lhs.shape, *rhs.shape):
        return jnp.zeros(shape, out_dtype)
    compute = jnp.promote_types(lhs.dtype, rhs.dtype)
    if direction is not FWD or lhs.dtype != rhs.dtype or not jnp.issubdtype(out_dtype, jnp.floating):
        compute = jnp.promote_types(compute, out_dtype)  # integers must not wrap before the sum
    rule = {"y": _forward, "x": _data_gradient, "w": _filter_gradient}[direction.result]
    types = {"precision": precision, "preferred_element_type": jnp.promote_types(compute, out_dtype)}
    return rule(lhs.astype(compute), rhs.astype(compute), spec, types).astype(out_dtype)


def _with_unit_axis(spec: ConvSpec) -> ConvSpec:
    """The same geometry with one more, last axis of extent 1."""
    last = 2 + spec.rank
    return ConvSpec(
        x_dims=(*spec.x_dims, last),
        w_dims=(*spec.w_dims, last),
        y_dims=(*spec.y_dims, last),
        x_spatial=(*spec.x_spatial, 1),
        w_spatial=(*spec.w_spatial, 1),
        strides=(*spec.strides, 1),
        padding=(*spec.padding, (0, 0)),
        dilation=(*spec.dilation, 1),
        groups=spec.groups,
    )


class _Split(NamedTuple):
    """The exact pads in two parts: ``inside`` the kernel's reach, and what is put on or cut off ``outside``.

    XLA's CPU convolution reads the neighbouring row when a negative low pad meets a positive high one in
    float32 (seen in jaxlib 0.10.2), so it is given pads that lead to no negative ones in any direction.
    """

    inside: Pads
    outside: list[tuple[int, int, int]]  # for each axis of x, as `lax.pad` wants it


def _split_pads(spec: ConvSpec) -> _Split:
    inside, outside = [], [(0, 0, 0)] * (2 + spec.rank)
    for axis, (low, high), k, d, s in zip(
        spec.x_dims[2:], spec.exact_padding(), spec.w_spatial, spec.dilation, spec.strides, strict=True
    ):
        # XLA takes some padded gradients with kernel = stride = 2 for grouped, and aborts (jaxlib 0.10.2)
        reach = 0 if k == s == 2 else effective_kernel(k, d) - 1
        inner_low, inner_high = min(max(low, 0), reach), min(max(high, 0), reach)
        inside.append((inner_low, inner_high))
        outside[axis] = (low - inner_low, high - inner_high, 0)
    return _Split(tuple(inside), outside)


def _pad(x: Any, pads: list[tuple[int, int, int]]) -> Any:
    return lax.pad(x, jnp.zeros((), x.dtype), pads) if any(p != (0, 0, 0) for p in pads) else x


def _forward(x, w, spec: ConvSpec, types: dict) -> jax.Array:
    split = _split_pads(spec)
    # A remainder of less than a stride may stay: no window fits there anyway.
    remainders = dict(zip(spec.x_dims[2:], spec.strides, strict=True))
    outside = [
        (low, 0 if -remainders.get(axis, 0) < high < 0 else high, inner)
        for axis, (low, high, inner) in enumerate(split.outside)
    ]
    return _conv_general_dilated(
        _pad(x, outside),
        w,
        window_strides=spec.strides,
        padding=split.inside,
        rhs_dilation=spec.dilation,
        dimension_numbers=lax.ConvDimensionNumbers(spec.x_dims, spec.w_dims, spec.y_dims),
        feature_group_count=spec.groups,
        **types,
    )


def _data_gradient(y, w, spec: ConvSpec, types: dict) -> jax.Array:
    """y spread apart by the strides, convolved with the reversed kernel whose two features swap places."""
    split = _split_pads(spec)
    w = lax.rev(w, spec.w_dims[2:])
    out_axis, in_axis, *taps = spec.w_dims
    if spec.groups > 1:  # the groups go from the output features to the input features
        w, groups_axis = unfold(w, spec.groups, out_axis, 1)
        w = fold(w, groups_axis, in_axis, 1)
    x = _conv_general_dilated(
        y,
        w,
        window_strides=(1,) * spec.rank,
        padding=[
            (effective_kernel(k, d) - 1 - low, effective_kernel(k, d) - 1 - high)
            for k, d, (low, high) in zip(spec.w_spatial, spec.dilation, split.inside, strict=True)
        ],
        lhs_dilation=spec.strides,
        rhs_dilation=spec.dilation,
        dimension_numbers=lax.ConvDimensionNumbers(spec.y_dims, (in_axis, out_axis, *taps), spec.x_dims),
        feature_group_count=spec.groups,
        **types,
    )
    return _pad(x, [(-low, -high, 0) for low, high, _ in split.outside])


def _filter_gradient(x, y, spec: ConvSpec, types: dict) -> jax.Array:
    """x correlated with y spread apart by the strides: batch and features swap places."""
    split = _split_pads(spec)

    def swapped(dims):
        return (dims[1], dims[0], *dims[2:])

    return _conv_general_dilated(
        _pad(x, split.outside),
        y,
        window_strides=spec.dilation,
        padding=split.inside,
        rhs_dilation=spec.strides,
        dimension_numbers=lax.ConvDimensionNumbers(*map(swapped, (spec.x_dims, spec.y_dims, spec.w_dims))),
        batch_group_count=spec.groups,
        **types,
    )
