"""oneDNN for platform cpu: which kernel, and the call of it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cudnn_conv import _native
from jax_cudnn_conv._kernel import Kernel, attributes, geometry, is_known, on_xla
from jax_cudnn_conv._primitives import Direction, result_shape
from jax_cudnn_conv._spec import ConvSpec
from jax_cudnn_conv._targets import ONEDNN_TARGETS, onednn
from jax_cudnn_conv.options import Options

_FLOATS = tuple(map(jnp.dtype, (jnp.float32, jnp.bfloat16, jnp.float16)))


def choose(
    direction: Direction,
    lhs: Any,
    rhs: Any,
    *,
    spec: ConvSpec,
    out_dtype: Any,
    precision: Any,
    options: Options,
) -> Kernel:
    """The kernel of one convolution of operands with the given shapes and dtypes.

    Unless a native one is asked for, that is XLA's also where oneDNN has one, but a slower one.
    """
    module, prefer_xla = onednn(), options.backend != "native"
    if module is None:
        return on_xla(f"oneDNN is not available: {_native.onednn_error()}")
    if not 1 <= spec.rank <= 3:
        return on_xla(f"oneDNN convolves 1 to 3 axes, not {spec.rank}")
    dtypes = {jnp.dtype(d) for d in (lhs.dtype, rhs.dtype, out_dtype)}
    if not dtypes <= set(_FLOATS):
        return on_xla(f"oneDNN lacks dtype {', '.join(sorted(d.name for d in dtypes))}")
    shapes = lhs.shape, rhs.shape, result_shape(direction, spec, lhs.shape, rhs.shape)
    if not is_known(*shapes):
        return Kernel("onednn", "chosen at run time", jnp.dtype(jnp.float32))
    if max(np.prod(shape, dtype=np.float64) for shape in shapes) >= 2**62:
        return on_xla("more elements than 64-bit offsets can hold")
    reason = ""
    for dtype in _compute_dtypes(jnp.dtype(lhs.dtype), jnp.dtype(rhs.dtype), jnp.dtype(out_dtype)):
        out = out_dtype if dtype != jnp.float32 else jnp.float32
        name, reason, in_double = module.describe(
            direction.result,
            list(map(list, shapes)),
            [jnp.dtype(d).name for d in (dtype, dtype, out)],
            **geometry(spec, _allow_bf16(precision)),
        )
        if name and not (reason and prefer_xla):
            return Kernel("onednn", name, dtype)
        if in_double and prefer_xla:
            return on_xla(reason, jnp.dtype(jnp.float64))
    return on_xla(reason)


def call(lhs, rhs, *, direction, spec, out_dtype, precision, kernel):
    """Call oneDNN in the kernel's dtype."""
    shape = result_shape(direction, spec, lhs.shape, rhs.shape)
    dtype = out_dtype if kernel.dtype != jnp.float32 else kernel.dtype
    function = jax.ffi.ffi_call(ONEDNN_TARGETS[direction.result], jax.ShapeDtypeStruct(shape, dtype))
    told = attributes(geometry(spec, _allow_bf16(precision)))
    return function(lhs.astype(kernel.dtype), rhs.astype(kernel.dtype), **told).astype(out_dtype)


def _compute_dtypes(lhs: np.dtype, rhs: np.dtype, out: np.dtype) -> list[np.dtype]:
    """The operand dtypes to try: 16 bits as they are, else everything in f32 and rounded once."""
    narrow = [lhs] if lhs == rhs != jnp.float32 and out in (lhs, jnp.float32) else []
    return [*narrow, jnp.dtype(jnp.float32)]


def _allow_bf16(precision: Any) -> bool:
    return precision == lax.DotAlgorithmPreset.BF16_BF16_F32
