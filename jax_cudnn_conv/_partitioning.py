"""How a convolution splits over devices, so that XLA gathers nothing before a custom call.

Batch ``n`` and, without groups, the features ``o`` and ``i`` may be split over mesh axes; extents and
grouped features may not. The axis that a direction sums over (i, o or n: the one its result lacks)
leaves partial sums, which one all-reduce adds up.
"""

from typing import Any

from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from jax_cudnn_conv import _compat
from jax_cudnn_conv._primitives import Direction, bind
from jax_cudnn_conv._spec import SPLITTABLE, ConvSpec, split_axes


def partitioned(direction: Direction, *, spec: ConvSpec, **params: Any) -> Any:
    """The primitive as a function of two arrays that XLA's partitioner knows how to split."""
    operands = [spec.factors(role) for role in direction.operands]
    result = spec.factors(direction.result)
    in_order = list(dict.fromkeys(f for names in (*operands, result) for f in names))
    summed = tuple(f for f in in_order if f in SPLITTABLE and f not in result)

    def compute(lhs, rhs):
        return bind(direction, lhs, rhs, spec=spec, **params)

    def partition(mesh, arguments, _):
        axes = split_axes(operands, [a.sharding.spec for a in arguments])

        def sharding(names):
            return NamedSharding(mesh, PartitionSpec(*map(axes.get, names)))

        def compute_shard(lhs, rhs):
            out = compute(lhs, rhs)
            for name in summed:
                if name in axes:
                    out = _compat.psum(out, axes[name])
            return out

        return mesh, compute_shard, sharding(result), tuple(map(sharding, operands))

    function = custom_partitioning(compute)
    function.def_partition(
        partition,
        sharding_rule=f"{', '.join(map(' '.join, operands))} -> {' '.join(result)}",
        reduction_factors=summed,
        need_replication_factors=tuple(f for f in in_order if f not in SPLITTABLE),
    )
    return function


def splits_over_devices(ctx: Any) -> bool:
    """Is XLA's partitioner to split the program being lowered over several known devices?"""
    devices = getattr(ctx.module_context.axis_context, "device_assignment", None)
    return devices is not None and len(devices) > 1


def is_partly_manual(ctx: Any) -> bool:
    """Is it inside a `jax.shard_map` over some axes of a mesh, and to be split over the others?

    JAX's `custom_partitioning` does not work there, and XLA would gather operands before a custom call.
    """
    context = ctx.module_context.axis_context
    manual = getattr(context, "manual_axes", None)
    if manual is None:
        return False
    return any(size > 1 for axis, size in context.mesh.shape.items() if axis not in manual)
