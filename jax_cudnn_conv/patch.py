"""Run the convolutions of code that calls `jax.lax`, such as Flax, Equinox or Haiku, on this library.

JAX traces, differentiates and maps its own primitive as ever; only its lowering rules are replaced. Each
`conv_general_dilated` that reaches them, a gradient's included, is put in canonical form (`_canonical.py`)
and lowered to one of our primitives where a native kernel computes it, and by JAX's own rule otherwise.
"""

import functools
import logging
import threading
from types import TracebackType
from typing import Any

import jax
from jax.interpreters import mlir

from jax_cudnn_conv import _canonical, _compat, _lowering
from jax_cudnn_conv._partitioning import is_partly_manual, splits_over_devices
from jax_cudnn_conv.options import current

logger = logging.getLogger("jax_cudnn_conv")
PLATFORMS = ("cpu", "cuda")

_lock = threading.RLock()
_originals: dict[str, Any] = {}  # the entries that were replaced, by platform; empty while not patched
_ours: dict[str, Any] = {}
_asked = False  # whether JAX's rule, too, asked for the devices
_held = False  # by a call of patch_jax that was not (or not yet) entered as a context
_entered = 0  # contexts that are open


class Patch:
    """What :func:`patch_jax` returns: a context manager that takes the patch back when it is left."""

    def __init__(self, first: bool):
        self._first = first  # this call patched, and so its context unpatches

    def __enter__(self) -> "Patch":
        global _entered, _held
        with _lock:
            if self._first:
                _held, self._first = False, False
            _entered += 1
            _activate()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        global _entered
        with _lock:
            _entered -= 1
            if not _entered and not _held:
                _deactivate()


def patch_jax() -> Patch:
    """Let the convolutions of `jax.lax` run on this library's kernels, in all threads.

    What is compiled from now on is concerned, in whatever library it was written: flax, equinox, haiku. Only
    how a convolution is lowered changes, on CPUs and NVIDIA GPUs, so shapes, dtypes, derivatives and `vmap`
    are JAX's own. A convolution stays JAX's where no native kernel takes it, inside
    ``options(backend="xla")``, and in programs that XLA partitions over devices; inside `jax.shard_map` over
    all axes of the mesh, and `jax.pmap`, it is ours. With ``JAX_CUDNN_CONV_LOG=1`` each is a line on stderr.

    To patch, and to unpatch, clears JAX's caches (`jax.clear_caches`), so every function compiles again;
    programs that were compiled ahead of time keep what they have. Patching twice is patching once.

    Returns:
      A context manager that unpatches at the end of its block, unless an earlier call or an enclosing block
      had patched. It need not be used as one.

    Example:
      >>> import jax, jax.numpy as jnp, jax_cudnn_conv as jcc
      >>> x, w = jnp.ones((1, 8, 14, 14)), jnp.ones((16, 8, 3, 3))
      >>> with jcc.patch_jax():
      ...     text = jax.jit(lambda x, w: jax.lax.conv(x, w, (2, 2), "SAME")).lower(x, w).as_text()
      >>> jcc.CUSTOM_CALL_TARGETS[0] in text
      True
    """
    global _held
    with _lock:
        first = _activate()
        _held = _held or first
    return Patch(first)


def unpatch_jax() -> None:
    """Put JAX's own lowering rules back, inside of blocks of :func:`patch_jax`, too.

    Does nothing where they are in place. A rule that someone else has registered since stays.

    Example:
      >>> import jax_cudnn_conv as jcc
      >>> patch = jcc.patch_jax()
      >>> jcc.unpatch_jax()
    """
    global _held
    with _lock:
        _held = False
        _deactivate()


def _activate() -> bool:
    """Replace the rules; False if they are ours already."""
    global _asked
    if _originals:
        return False
    primitive = jax.lax.conv_general_dilated_p
    _asked = _compat.asks_for_devices(primitive)
    _compat.ask_for_devices(primitive)
    for platform in PLATFORMS:
        _originals[platform] = _compat.get_lowering(primitive, platform)
        original = _originals[platform] or _compat.get_lowering(primitive, None)
        rule = functools.partial(_lower, platform, original.rule)
        mlir.register_lowering(primitive, rule, platform=platform)
        _ours[platform] = _compat.get_lowering(primitive, platform)
    jax.clear_caches()
    return True


def _deactivate() -> None:
    if not _originals:
        return
    primitive = jax.lax.conv_general_dilated_p
    for platform, original in _originals.items():
        if _compat.get_lowering(primitive, platform) is _ours[platform]:
            _compat.set_lowering(primitive, platform, original)
    _compat.ask_for_devices(primitive, _asked)
    _originals.clear()
    _ours.clear()
    jax.clear_caches()


def _lower(platform: str, original: Any, ctx: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
    """The lowering rule: ours where a native kernel computes the convolution, else JAX's ``original``."""
    (first, second), (out,) = ctx.avals_in, ctx.avals_out
    plan = None if _is_partitioned(ctx) else _native_plan(platform, first, second, out, params)
    if plan is None:
        return original(ctx, lhs, rhs, **params)
    rule = functools.partial(plan, out_dtype=out.dtype, precision=params["precision"], options=current())
    return mlir.lower_fun(rule, multiple_results=False)(ctx, lhs, rhs)


def _is_partitioned(ctx: Any) -> bool:
    """May XLA split the program over devices? It knows how to split its own convolution in more ways."""
    split = splits_over_devices(ctx) or is_partly_manual(ctx)
    return split or _compat.has_explicit_mesh(ctx.avals_out[0])


def _native_plan(platform: str, lhs: Any, rhs: Any, out: Any, params: Any) -> _canonical.Plan | None:
    plan = _canonical.plan(lhs.shape, rhs.shape, out.shape, params)
    if plan is None:
        return None
    first, second = jax.eval_shape(
        plan.operands,
        jax.ShapeDtypeStruct(lhs.shape, lhs.dtype),
        jax.ShapeDtypeStruct(rhs.shape, rhs.dtype),
    )
    kernel = _lowering.choose(
        plan.direction,
        first,
        second,
        platform=platform,
        options=current(),
        spec=plan.spec,
        out_dtype=out.dtype,
        precision=plan.precision(params["precision"]),
    )
    logger.info("conv_general_dilated %s %s as %s: %s", lhs, rhs, plan.direction.primitive.name, kernel)
    return None if kernel.backend == "xla" else plan
