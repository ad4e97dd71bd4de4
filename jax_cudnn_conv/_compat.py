"""Every name whose place or form depends on the version of JAX, and nothing else."""

from collections.abc import Sequence
from typing import Any

import jax

# Without it, JAX does not tell a lowering rule which devices a program is split over, and XLA gathers
# sharded operands before every custom call.
from jax._src.dispatch import prim_requires_devices_during_lowering
from jax._src.interpreters import mlir  # for `get_lowering`
from jax.extend import core
from jax.sharding import AxisType, NamedSharding, PartitionSpec

Primitive = core.Primitive


def enable_x64(enable: bool) -> Any:
    """A context in which JAX has float64, or has not, whatever the configuration says."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(enable)
    return jax.experimental.enable_x64(enable)  # type: ignore[attr-defined]  # before jax 0.8


def asks_for_devices(primitive: Primitive) -> bool:
    """Does the lowering rule of ``primitive`` see the devices of a program?"""
    return primitive in prim_requires_devices_during_lowering


def ask_for_devices(primitive: Primitive, ask: bool = True) -> None:
    """Let the lowering rule of ``primitive`` see the devices of a program, or no longer."""
    if ask:
        prim_requires_devices_during_lowering.add(primitive)
    else:
        prim_requires_devices_during_lowering.discard(primitive)


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
    return jax.lax.pvary(x, axes)  # type: ignore[attr-defined]  # before jax 0.8


def result_aval(lhs: Any, rhs: Any, shape: Sequence[int], dtype: Any, split: Sequence[Any]) -> Any:
    """An abstract value that varies along the operands' manual axes, ``split`` over an explicit mesh."""
    like = rhs if lhs.sharding.mesh.empty else lhs
    sharding = NamedSharding(like.sharding.mesh, PartitionSpec(*split))
    return like.update(shape=tuple(shape), dtype=dtype, weak_type=False, sharding=sharding)


def with_sharding_of(x: Any, aval: Any) -> Any:
    """``x`` sharded as ``aval``, where an explicit mesh makes the sharding a part of the type."""
    if aval.sharding == jax.typeof(x).sharding or aval.sharding.mesh.empty:
        return x
    reshard = getattr(jax, "reshard", None) or jax.sharding.reshard  # the latter before jax 0.8
    return reshard(x, aval.sharding)


def psum(x: Any, axes: Any) -> Any:
    """`lax.psum` inside `custom_partitioning`, where an explicit mesh of the caller means nothing."""
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        return jax.lax.psum(x, axes)


def has_explicit_mesh(aval: Any) -> bool:
    """Is the sharding over a mesh a part of the type?"""
    mesh = aval.sharding.mesh
    return not mesh.empty and AxisType.Explicit in mesh.axis_types


def get_lowering(primitive: Primitive, platform: str | None) -> Any:
    """The entry of JAX's table of lowering rules for one platform or (None) for any; None without one.

    JAX registers rules but gives none back. Without this `patch_jax` could neither leave a convolution to
    JAX's own rule nor restore it. The tables have had these names since before jax 0.7.2.
    """
    return _lowering_table(platform).get(primitive)


def set_lowering(primitive: Primitive, platform: str | None, entry: Any) -> None:
    """Put an entry of `get_lowering` back; None removes it."""
    table = _lowering_table(platform)
    if entry is None:
        table.pop(primitive, None)
    else:
        table[primitive] = entry


def _lowering_table(platform: str | None) -> Any:
    return mlir._lowerings if platform is None else mlir._platform_specific_lowerings[platform]
