"""Which library runs a convolution, decided once while it is lowered."""

import functools
import logging
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import mlir

from jax_cudnn_conv import _compat, _native, _process, _xla
from jax_cudnn_conv._partitioning import partitioned, splits_over_devices
from jax_cudnn_conv._primitives import DIRECTIONS, Direction, result_shape
from jax_cudnn_conv._spec import ConvSpec
from jax_cudnn_conv._targets import TARGETS, onednn

logger = logging.getLogger("jax_cudnn_conv")
if os.environ.get("JAX_CUDNN_CONV_LOG", "0") not in ("", "0"):
    logger.addHandler(logging.StreamHandler())
    logger.setLevel(logging.INFO)

_FLOATS = tuple(map(jnp.dtype, (jnp.float32, jnp.bfloat16, jnp.float16)))


class Kernel(NamedTuple):
    """What runs a convolution, and why it is not the native library where it is XLA."""

    backend: str
    name: str
    dtype: Any = None
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.backend}:{self.name}" + (f" ({self.reason})" if self.reason else "")


def choose(
    direction: Direction,
    lhs: Any,
    rhs: Any,
    *,
    spec: ConvSpec,
    out_dtype: Any,
    precision: Any,
    backend: str,
    platform: str = "cpu",
) -> Kernel:
    """Choose the kernel of one convolution of operands with the given shapes and dtypes."""
    if backend == "xla":
        return Kernel("xla", "convolution", reason="asked for by options(backend='xla')")
    if platform != "cpu":
        return Kernel("xla", "convolution", reason=f"no native backend for platform {platform!r}")
    module = onednn()
    if module is None:
        return Kernel("xla", "convolution", reason=f"oneDNN is not available: {_native.onednn_error()}")
    if not 1 <= spec.rank <= 3:
        return Kernel("xla", "convolution", reason=f"oneDNN convolves 1 to 3 axes, not {spec.rank}")
    dtypes = {jnp.dtype(d) for d in (lhs.dtype, rhs.dtype, out_dtype)}
    if not dtypes <= set(_FLOATS):
        names = ", ".join(sorted(d.name for d in dtypes))
        return Kernel("xla", "convolution", reason=f"oneDNN lacks dtype {names}")
    shapes = lhs.shape, rhs.shape, result_shape(direction, spec, lhs.shape, rhs.shape)
    if not all(isinstance(extent, int) for shape in shapes for extent in shape):
        return Kernel("onednn", "chosen at run time", jnp.dtype(jnp.float32))
    if max(np.prod(shape, dtype=np.float64) for shape in shapes) >= 2**62:
        return Kernel("xla", "convolution", reason="more elements than 64-bit offsets can hold")
    reason = ""
    for dtype in _compute_dtypes(jnp.dtype(lhs.dtype), jnp.dtype(rhs.dtype), jnp.dtype(out_dtype)):
        out = out_dtype if dtype != jnp.float32 else jnp.float32
        name, reason = module.describe(
            direction.result,
            list(map(list, shapes)),
            [jnp.dtype(d).name for d in (dtype, dtype, out)],
            **_geometry(spec, precision),
        )
        if name:
            return Kernel("onednn", name, dtype)
    return Kernel("xla", "convolution", reason=reason)


def _compute_dtypes(lhs: np.dtype, rhs: np.dtype, out: np.dtype) -> list[np.dtype]:
    """The operand dtypes to try: 16 bits as they are, else everything in f32 and rounded once."""
    narrow = [lhs] if lhs == rhs != jnp.float32 and out in (lhs, jnp.float32) else []
    return [*narrow, jnp.dtype(jnp.float32)]


def _geometry(spec: ConvSpec, precision: Any) -> dict[str, Any]:
    """What oneDNN is told beside the shapes of the three tensors, which it reads from their buffers."""
    return {
        "x_dims": spec.x_dims,
        "w_dims": spec.w_dims,
        "y_dims": spec.y_dims,
        "strides": spec.strides,
        "dilation": spec.dilation,
        "pad_low": tuple(low for low, _ in spec.padding),
        "groups": spec.groups,
        "allow_narrow": precision == lax.DotAlgorithmPreset.BF16_BF16_F32,
    }


def _attributes(geometry: dict[str, Any]) -> dict[str, Any]:
    """The same as attributes of a custom call."""
    dtypes = {tuple: np.int64, int: np.int64, bool: np.bool_}
    return {name: np.asarray(v, dtypes[type(v)])[()] for name, v in geometry.items()}


def _onednn(lhs, rhs, *, direction, spec, out_dtype, precision, kernel):
    """Call oneDNN in the kernel's dtype."""
    shape = result_shape(direction, spec, lhs.shape, rhs.shape)
    dtype = out_dtype if kernel.dtype != jnp.float32 else kernel.dtype
    call = jax.ffi.ffi_call(TARGETS[direction.result], jax.ShapeDtypeStruct(shape, dtype))
    out = call(lhs.astype(kernel.dtype), rhs.astype(kernel.dtype), **_attributes(_geometry(spec, precision)))
    return out.astype(out_dtype)


def _lower(direction, platform, ctx, lhs, rhs, *, backend, **params):
    _process.mark_used()
    kernel = choose(direction, *ctx.avals_in, backend=backend, platform=platform, **params)
    logger.info("%s %s: %s", direction.primitive.name, ctx.avals_in, kernel)
    if kernel.backend == "xla":
        if backend == "native":
            raise NotImplementedError(
                f"{direction.primitive.name} of {ctx.avals_in[0]} and {ctx.avals_in[1]} has no native "
                f"kernel: {kernel.reason}. options(backend='auto') runs it on XLA."
            )
        rule = functools.partial(_xla.conv, direction=direction)
    elif splits_over_devices(ctx):
        rule = partitioned(direction, backend=backend, **params)  # each shard is lowered by itself
        params = {}
    else:
        rule = functools.partial(_onednn, direction=direction, kernel=kernel)
    return mlir.lower_fun(rule, multiple_results=False)(ctx, lhs, rhs, **params)


onednn()  # now, not with the first convolution: a function loaded with `jax.export` needs the targets, too
for _direction in DIRECTIONS:
    _compat.ask_for_devices(_direction.primitive)
    for _platform in ("cpu", None):
        mlir.register_lowering(
            _direction.primitive,
            functools.partial(_lower, _direction, _platform or "other"),
            platform=_platform,
        )
