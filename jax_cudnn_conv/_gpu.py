"""cuDNN for platform cuda: which kernel, and the call of it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cudnn_conv import _devices, _native
from jax_cudnn_conv._kernel import Kernel, attributes, geometry, is_known, on_xla
from jax_cudnn_conv._primitives import Direction, result_shape
from jax_cudnn_conv._spec import ConvSpec
from jax_cudnn_conv._targets import CUDNN_TARGETS, cudnn
from jax_cudnn_conv.options import AUTOTUNE, Options

_FLOATS = tuple(map(jnp.dtype, (jnp.float32, jnp.bfloat16, jnp.float16, jnp.float64)))
_EXACT_PRESETS = (lax.DotAlgorithmPreset.F32_F32_F32, lax.DotAlgorithmPreset.F64_F64_F64)


def choose(
    direction: Direction,
    lhs: Any,
    rhs: Any,
    *,
    spec: ConvSpec,
    out_dtype: Any,
    precision: Any,
    options: Options,
    device: str | None = None,
    bias: bool = False,
    relu: bool = False,
) -> Kernel:
    """The kernel of one convolution of operands with the given shapes and dtypes.

    ``device`` names a GPU to answer for, such as "sm_90"; None is the one of this process. Where there is
    neither, as in an export from another machine, the plan is chosen when the program runs.
    """
    module = cudnn()
    if module is None:
        return on_xla(f"cuDNN is not available: {_native.cudnn_error()}")
    if not 1 <= spec.rank <= 3:
        return on_xla(f"cuDNN convolves 1 to 3 axes, not {spec.rank}")
    dtypes = {jnp.dtype(d) for d in (lhs.dtype, rhs.dtype, out_dtype)}
    if not dtypes <= set(_FLOATS):
        return on_xla(f"cuDNN lacks dtype {', '.join(sorted(d.name for d in dtypes))}")
    try:
        gpu = _devices.described(device, module) if device else _devices.live(module)
    except RuntimeError as error:
        return on_xla(f"cuDNN cannot be used: {error}")
    candidates = _compute_dtypes(dtypes, gpu)
    shapes = lhs.shape, rhs.shape, result_shape(direction, spec, lhs.shape, rhs.shape)
    if not is_known(*shapes):
        return Kernel("cudnn", "chosen at run time", candidates[0])
    even_pads = gpu is not None and _wants_even_pads(gpu, module)
    inner, shapes = _inner(direction, spec, even_pads, shapes)
    if min(inner.x_spatial) <= 0 or any(0 in shape for shape in shapes):
        return on_xla("there is nothing to sum") if bias or relu else Kernel("cudnn", "zero", candidates[0])
    if gpu is None:
        return Kernel("cudnn", "chosen at run time", candidates[0])
    reason = ""
    for dtype in candidates:
        told = _told(inner, dtype, lhs.dtype, precision, options) | {"bias": bias, "relu": relu}
        del told["autotune"]  # trials need the GPU
        name, workspace, notes, reason = module.describe(
            direction.result, list(map(list, shapes)), [dtype.name] * 3, **told, device=gpu.description
        )
        if name:
            return Kernel("cudnn", name, dtype, workspace=workspace, notes=notes, even_pads=even_pads)
    return on_xla(reason)


def call(lhs, rhs, *bias, direction, spec, out_dtype, precision, options, kernel, relu=False):
    """Call cuDNN in the kernel's dtype."""
    shape = result_shape(direction, spec, lhs.shape, rhs.shape)
    if kernel.name == "zero":
        return jnp.zeros(shape, out_dtype)
    shapes = lhs.shape, rhs.shape, shape
    inner, (_, _, inner_shape) = _inner(direction, spec, kernel.even_pads, shapes)
    told = _told(inner, kernel.dtype, lhs.dtype, precision, options) | {"relu": relu}
    function = jax.ffi.ffi_call(
        CUDNN_TARGETS[direction.result], jax.ShapeDtypeStruct(inner_shape, kernel.dtype)
    )
    pads = _outer_pads(spec, kernel.even_pads)
    if direction.operands[0] == "x":
        lhs = _pad(lhs, pads)
    out = function(*(a.astype(kernel.dtype) for a in (lhs, rhs, *bias)), **attributes(told))
    if direction.result == "x":
        out = _pad(out, [(-low, -high, 0) for low, high, _ in pads])
    return out.astype(out_dtype)


def _compute_dtypes(dtypes: set[np.dtype], gpu: "_devices.Gpu | None") -> list[np.dtype]:
    """The dtypes to try for all three tensors: one that they share, else a wider one, rounded once."""
    wide = jnp.dtype(jnp.float64 if jnp.dtype(jnp.float64) in dtypes else jnp.float32)
    (only, *others) = dtypes
    narrow = [] if others or only == wide else [only]
    if gpu and gpu.capability < 80 and narrow == [jnp.bfloat16]:
        narrow = []
    return [*narrow, wide]


def _told(spec: ConvSpec, dtype: Any, given: Any, precision: Any, options: Options) -> dict[str, Any]:
    """What cuDNN is told beside the shapes of the tensors."""
    # TF32 has the 10 bits of f16's mantissa and the exponents of f32: it holds 16-bit operands exactly.
    narrow = dtype == jnp.float32 and (jnp.dtype(given).itemsize == 2 or _allow_tf32(precision))
    return geometry(spec, narrow) | {
        "deterministic": options.deterministic,
        "workspace_limit": options.workspace_limit,
        "autotune": AUTOTUNE.index(options.autotune),
    }


def _allow_tf32(precision: Any) -> bool:
    """Whether f32 operands may be narrowed: as in JAX, unless a higher precision is asked for."""
    if isinstance(precision, lax.DotAlgorithmPreset):
        return precision not in _EXACT_PRESETS
    return precision is None or all(p == lax.Precision.DEFAULT for p in precision)


def _wants_even_pads(gpu: "_devices.Gpu", module: Any) -> bool:
    """Has cuDNN only its slowest engines for uneven pads? Before version 9.10, and on GPUs before sm_80."""
    version = tuple(map(int, module.info()["version"].split(".")))
    return gpu.capability < 80 or version < (9, 10)


def _inner(direction: Direction, spec: ConvSpec, even_pads: bool, shapes: tuple) -> tuple[ConvSpec, tuple]:
    """The convolution that cuDNN gets, with what pads it lacks around x or cut off it beforehand."""
    outer = _outer_pads(spec, even_pads)
    inner = dataclasses.replace(
        spec,
        x_spatial=tuple(
            extent + outer[axis][0] + outer[axis][1]
            for axis, extent in zip(spec.x_dims[2:], spec.x_spatial, strict=True)
        ),
        padding=tuple(
            (low - outer[axis][0], high - outer[axis][1])
            for axis, (low, high) in zip(spec.x_dims[2:], spec.padding, strict=True)
        ),
    )
    lhs, rhs = direction.operands
    features = spec.features(lhs, shapes[0]) | spec.features(rhs, shapes[1])
    return inner, tuple(inner.shape(role, **features) for role in (lhs, rhs, direction.result))


def _outer_pads(spec: ConvSpec, even: bool) -> list[tuple[int, int, int]]:
    """The part of the pads that cuDNN does not take, as `lax.pad` wants it for x: negative ones crop."""
    pads = [(0, 0, 0)] * (2 + spec.rank)
    for axis, (low, high) in zip(spec.x_dims[2:], spec.padding, strict=True):
        most = max(min(low, high), 0) if even else None
        inner = [max(pad, 0) if most is None else most for pad in (low, high)]
        pads[axis] = (low - inner[0], high - inner[1], 0)
    return pads


def _pad(x: Any, pads: list[tuple[int, int, int]]) -> Any:
    return lax.pad(x, jnp.zeros((), x.dtype), pads) if any(p != (0, 0, 0) for p in pads) else x
