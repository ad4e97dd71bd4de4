"""Every name whose place or form depends on the version of JAX, and nothing else."""

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend import core
from jax.sharding import NamedSharding, PartitionSpec

Primitive = core.Primitive


def _varying_axes(x: Any) -> frozenset:
    """The manual mesh axes (of a `jax.shard_map` with ``check_vma``) that ``x`` differs along."""
    aval = jax.typeof(x)
    if hasattr(aval, "manual_axis_type"):
        return aval.manual_axis_type.varying
    return aval.vma  # before jax 0.10


def cast_to_common_varying_axes(*args: Any) -> list:
    """Let every operand vary along the union of the operands' axes, as JAX does for its own primitives."""
    union = frozenset().union(*map(_varying_axes, args))
    return [_pcast(a, tuple(union - _varying_axes(a))) for a in args]


def _pcast(x: Any, axes: tuple) -> Any:
    if not axes:
        return x
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(x, axes, to="varying")
    return jax.lax.pvary(x, axes)  # before jax 0.8


def result_aval(lhs: Any, rhs: Any, shape: Sequence[int], dtype: Any) -> Any:
    """An abstract value that varies along the operands' manual axes and is not sharded otherwise."""
    like = rhs if lhs.sharding.mesh.empty else lhs
    replicated = NamedSharding(like.sharding.mesh, PartitionSpec(*(None,) * len(shape)))
    return like.update(shape=tuple(shape), dtype=dtype, weak_type=False, sharding=replicated)
