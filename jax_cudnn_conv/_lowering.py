"""Which library runs a convolution, decided once while it is lowered."""

import functools
import logging
import os
from typing import Any

from jax.interpreters import mlir

from jax_cudnn_conv import _compat, _cpu, _fused, _gpu, _process, _xla
from jax_cudnn_conv._kernel import Kernel, on_xla
from jax_cudnn_conv._partitioning import is_partly_manual, partitioned, splits_over_devices
from jax_cudnn_conv._primitives import DIRECTIONS, FWD, Direction
from jax_cudnn_conv._targets import cudnn, onednn
from jax_cudnn_conv.options import Options

logger = logging.getLogger("jax_cudnn_conv")
if os.environ.get("JAX_CUDNN_CONV_LOG", "0") not in ("", "0"):
    logger.addHandler(logging.StreamHandler())
    logger.setLevel(logging.INFO)


def choose(
    direction: Direction,
    lhs: Any,
    rhs: Any,
    *,
    options: Options,
    platform: str = "cpu",
    device: str | None = None,
    **params: Any,
) -> Kernel:
    """Choose the kernel of one convolution of operands with the given shapes and dtypes."""
    if options.backend == "xla":
        return on_xla("asked for by options(backend='xla')")
    if platform == "cpu":
        return _cpu.choose(direction, lhs, rhs, options=options, **params)
    if platform == "cuda":
        return _gpu.choose(direction, lhs, rhs, options=options, device=device, **params)
    return on_xla(f"no native backend for platform {platform!r}")


def _lower(direction, platform, ctx, lhs, rhs, *, options, **params):
    _process.mark_used()
    kernel = choose(direction, *ctx.avals_in, options=options, platform=platform, **params)
    if kernel.backend != "xla" and is_partly_manual(ctx):
        kernel = on_xla("inside a shard_map over some axes of a mesh XLA splits the others")
    logger.info("%s %s: %s", direction.primitive.name, ctx.avals_in, kernel)
    if kernel.backend == "xla":
        if options.backend == "native":
            raise NotImplementedError(
                f"{direction.primitive.name} of {ctx.avals_in[0]} and {ctx.avals_in[1]} has no native "
                f"kernel: {kernel.reason}. options(backend='auto') runs it on XLA."
            )
        rule = functools.partial(_xla.conv, direction=direction, compute_dtype=kernel.dtype)
    elif splits_over_devices(ctx):
        rule = partitioned(direction, options=options, **params)  # each shard is lowered by itself
        params = {}
    elif kernel.backend == "cudnn":
        rule = functools.partial(_gpu.call, direction=direction, kernel=kernel, options=options)
    else:
        rule = functools.partial(_cpu.call, direction=direction, kernel=kernel)
    return mlir.lower_fun(rule, multiple_results=False)(ctx, lhs, rhs, **params)


def choose_fused(
    x: Any, w: Any, *bias: Any, relu: bool, options: Options, platform: str, **params: Any
) -> Kernel | None:
    """The kernel for a convolution with bias and activation in one; None where they are separate."""
    if platform != "cuda" or options.backend == "xla":
        return None
    if not bias:  # for an activation alone cuDNN has only engines that it compiles at run time
        return None
    kernel = _gpu.choose(FWD, x, w, options=options, bias=True, relu=relu, **params)
    return kernel if kernel.backend == "cudnn" else None


def _lower_fused(platform, ctx, *operands, relu, options, **params):
    kernel = None
    if not (splits_over_devices(ctx) or is_partly_manual(ctx)):
        kernel = choose_fused(*ctx.avals_in, relu=relu, options=options, platform=platform, **params)
    if kernel is None:
        rule = functools.partial(_fused.unfused, relu=relu, options=options)
    else:
        logger.info("%s %s: %s", _fused.conv_fused_p.name, ctx.avals_in, kernel)
        rule = functools.partial(_gpu.call, direction=FWD, kernel=kernel, options=options, relu=relu)
    return mlir.lower_fun(rule, multiple_results=False)(ctx, *operands, **params)


# Now, not with the first convolution: a function loaded with `jax.export` needs the targets, too.
onednn()
cudnn()
RULES = {d.primitive: functools.partial(_lower, d) for d in DIRECTIONS} | {_fused.conv_fused_p: _lower_fused}
for _primitive, _rule in RULES.items():
    _compat.ask_for_devices(_primitive)
    for _platform in ("cpu", "cuda", None):
        mlir.register_lowering(_primitive, functools.partial(_rule, _platform or "other"), platform=_platform)
