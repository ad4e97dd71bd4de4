"""Three bilinear primitives that are closed under differentiation, transposition and batching.

With batch n, groups g, per-group output features o and input features i, output position q and
kernel tap k, a convolution is the trilinear form

    T(x, w, v) = sum over n g o i q k of  x[n, g i, q*stride - low + k*dilation] w[g o, i, k] v[n, g o, q]

(x is zero outside its extents). Each primitive is T without one of its arguments:

    fwd(x, w)    = dT/dv : y        the convolution
    dgrad(v, w)  = dT/dx : x        the transposed convolution
    wgrad(x, v)  = dT/dw : w        the correlation of inputs with output cotangents

*Transposing* one of them in one operand is dT with respect to that operand: another of the three, with
the cotangent in the place of what it used to compute. So no backward pass is written anywhere, and
every order of differentiation stays inside the set.

*Batching.* Each axis of the sum is shared by exactly these tensors:

    axis   n        o        i        g
    in     x, y     w, y     x, w     x, w, y

and a primitive mapped over some operands has the new axis in those and in its result: a set of tensors
that names one row. The mapped axis folds into that axis of every tensor in the set, outside of o and i
but inside of g, and the same primitive does all the work. Operands that are not mapped are untouched.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching, xla

from jax_cudnn_conv import _compat
from jax_cudnn_conv._spec import ConvSpec, Role, split_axes


class Direction(NamedTuple):
    """A primitive, the roles of its two operands and the role of its result."""

    primitive: _compat.Primitive
    operands: tuple[Role, Role]
    result: Role


conv_fwd_p = _compat.Primitive("conv_fwd")
conv_dgrad_p = _compat.Primitive("conv_dgrad")
conv_wgrad_p = _compat.Primitive("conv_wgrad")

FWD = Direction(conv_fwd_p, ("x", "w"), "y")
DGRAD = Direction(conv_dgrad_p, ("y", "w"), "x")
WGRAD = Direction(conv_wgrad_p, ("x", "y"), "w")
DIRECTIONS = (FWD, DGRAD, WGRAD)
_COMPUTES: dict[Role, Direction] = {d.result: d for d in DIRECTIONS}

# The sets of tensors that share an axis, and where that axis lies in each: which logical axis (0 or 1
# of `spec.dims(role)`), and whether the groups are an outer factor of it.
_BATCH_TABLE: dict[frozenset[Role], dict[Role, tuple[int, bool]]] = {
    frozenset({"x", "y"}): {"x": (0, False), "y": (0, False)},
    frozenset({"w", "y"}): {"w": (0, True), "y": (1, True)},
    frozenset({"x", "w"}): {"x": (1, True), "w": (1, False)},
    frozenset({"x", "w", "y"}): {"x": (1, False), "w": (0, False), "y": (1, False)},
}


def bind(direction: Direction, lhs: Any, rhs: Any, *, spec: ConvSpec, **params: Any) -> jax.Array:
    """Bind a primitive. ``params``: ``out_dtype``, ``precision`` and ``options``, as `_api` sets them."""
    lhs, rhs = _compat.cast_to_common_varying_axes(lhs, rhs)
    return direction.primitive.bind(lhs, rhs, spec=spec, **params)


def result_shape(
    direction: Direction, spec: ConvSpec, lhs: Sequence[int], rhs: Sequence[int]
) -> tuple[int, ...]:
    """The shape that the two operand shapes and the spec determine."""
    first, second = direction.operands
    left, right = spec.features(first, lhs), spec.features(second, rhs)
    shared = left.keys() & right.keys()
    assert all(left[key] == right[key] for key in shared), (direction.result, spec, lhs, rhs)
    features = left | right
    assert spec.shape(first, **features) == tuple(lhs), (first, spec, lhs)
    assert spec.shape(second, **features) == tuple(rhs), (second, spec, rhs)
    return spec.shape(direction.result, **features)


def abstract_eval(direction, lhs, rhs, *, spec, out_dtype, **_):
    shape = result_shape(direction, spec, lhs.shape, rhs.shape)
    axes = split_axes(
        [spec.factors(role) for role in direction.operands], [lhs.sharding.spec, rhs.sharding.spec]
    )
    split = [axes.get(factor) for factor in spec.factors(direction.result)]
    return _compat.result_aval(lhs, rhs, shape, out_dtype, split)


def _transpose(direction, wanted, ct, lhs, rhs, *, spec, out_dtype, **params):
    """The cotangent of the operand in place ``wanted`` (0 or 1)."""
    del out_dtype  # the cotangent has it; what is computed here takes its operand's dtype
    undefined, other = (lhs, rhs) if wanted == 0 else (rhs, lhs)
    values = {direction.result: ct, direction.operands[1 - wanted]: other}
    target = _COMPUTES[direction.operands[wanted]]
    first, second = target.operands
    aval = undefined.aval
    out = bind(target, values[first], values[second], spec=spec, out_dtype=aval.dtype, **params)
    return _compat.with_sharding_of(out, aval)


def _batch(direction, args, mapped, *, spec, out_dtype, **params):
    roles: tuple[Role, Role] = direction.operands
    size = next(a.shape[m] for a, m in zip(args, mapped, strict=True) if m is not None)
    places = _BATCH_TABLE[
        frozenset(r for r, m in zip(roles, mapped, strict=True) if m is not None) | {direction.result}
    ]
    if isinstance(size, int) and size == 0:
        shapes = [
            a.shape if m is None else a.shape[:m] + a.shape[m + 1 :]
            for a, m in zip(args, mapped, strict=True)
        ]
        return jnp.zeros((0, *result_shape(direction, spec, *shapes)), out_dtype), 0

    def place(role):
        axis, inside_groups = places[role]
        return spec.dims(role)[axis], spec.groups if inside_groups else 1

    folded = [
        a if m is None else fold(a, m, *place(role)) for a, m, role in zip(args, mapped, roles, strict=True)
    ]
    all_mapped = len(places) == 3
    larger = dataclasses.replace(spec, groups=spec.groups * size) if all_mapped else spec
    out = bind(direction, *folded, spec=larger, out_dtype=out_dtype, **params)
    return unfold(out, size, *place(direction.result))


def fold(a, mapped: int, axis: int, outer: int):
    """Merge axis ``mapped`` into ``axis`` (counted without it), between its ``outer`` factor and the rest."""
    a = jnp.moveaxis(a, mapped, axis)
    before, (size, extent), after = a.shape[:axis], a.shape[axis : axis + 2], a.shape[axis + 2 :]
    if outer > 1:
        a = a.reshape(*before, size, outer, extent // outer, *after).swapaxes(axis, axis + 1)
    return a.reshape(*before, size * extent, *after)


def unfold(a, size: int, axis: int, outer: int):
    """Undo `fold`: the array with the mapped axis split off again, and where it is."""
    before, extent, after = a.shape[:axis], a.shape[axis], a.shape[axis + 1 :]
    if outer == 1:
        return a.reshape(*before, size, extent // size, *after), axis
    a = a.reshape(*before, outer, size, extent // size // outer, *after).swapaxes(axis, axis + 1)
    return a.reshape(*before, size, extent // size, *after), axis


def _register(direction: Direction) -> None:
    primitive = direction.primitive
    primitive.def_impl(functools.partial(xla.apply_primitive, primitive))
    primitive.def_abstract_eval(functools.partial(abstract_eval, direction))
    ad.defbilinear(
        primitive,
        functools.partial(_transpose, direction, 0),
        functools.partial(_transpose, direction, 1),
    )
    batching.primitive_batchers[primitive] = functools.partial(_batch, direction)


for _direction in DIRECTIONS:
    _register(_direction)
