"""The custom calls of the native library, made known to XLA."""

import functools
import os
import re
from pathlib import Path
from typing import Any

import jax
import jaxlib.version

from jax_cudnn_conv import _native, _winners

# By the role of what they compute. The number changes when the meaning of a call does.
_NAMES = {"y": "fwd", "x": "dgrad", "w": "wgrad"}
ONEDNN_TARGETS = {role: f"jax_cudnn_conv_onednn_{name}_v1" for role, name in _NAMES.items()}
CUDNN_TARGETS = {role: f"jax_cudnn_conv_cudnn_{name}_v1" for role, name in _NAMES.items()}


def _environment_integer(name: str, low: int) -> int | None:
    """The value of an environment variable that holds an integer, None if it is not set."""
    text = os.environ.get(name, "")
    if not text:
        return None
    if not text.strip().isdecimal() or int(text) < low:
        raise ValueError(f"{name} must be an integer of at least {low}; got {text!r}")
    return int(text)


@functools.cache
def onednn() -> Any:
    """The oneDNN module with its FFI targets registered, or None."""
    module = _native.onednn()
    if module is None:
        return None
    if reason := _unfit(module):
        _native.reject_onednn(reason)
        return None
    threads = _environment_integer("JAX_CUDNN_CONV_NUM_THREADS", 1)
    if threads is not None:
        module.set_num_threads(threads)
    _register(module, "cpu")
    return module


@functools.cache
def cudnn() -> Any:
    """The cuDNN module with its FFI targets registered, or None. cuDNN itself is loaded when it is used."""
    module = _native.cudnn()
    if module is None:
        return None
    if reason := _unfit(module):
        _native.reject_cudnn(reason)
        return None
    module.set_library_path(_native.cudnn_library())
    denied = os.environ.get("JAX_CUDNN_CONV_DENY_ENGINES", "")
    module.deny_engines([name.strip() for name in denied.split(",") if name.strip()])
    module.set_winner_functions(_winners.find, _winners.keep, _winners.log)
    _register(module, "CUDA")
    return module


def _register(module: Any, platform: str) -> None:
    plans = _environment_integer("JAX_CUDNN_CONV_PLANS", 0)
    if plans is not None:
        module.set_plan_cache_capacity(plans)
    for name, handler in module.targets().items():
        jax.ffi.register_ffi_target(name, handler, platform=platform)


def _unfit(module: Any) -> str:
    """Why this jaxlib cannot take the module's handlers; empty if it can.

    JAX's backends cannot start with a handler of a newer API than their own, so look before.
    """
    header = (Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h").read_text()
    major, minor = (
        int(re.search(rf"define XLA_FFI_API_{part} (\d+)", header)[1])  # type: ignore[index]
        for part in ("MAJOR", "MINOR")
    )
    built_major, built_minor = module.ffi_api_version()
    if built_major == major and built_minor <= minor:
        return ""
    return (
        f"it was built for XLA's FFI {built_major}.{built_minor}; "
        f"jaxlib {jaxlib.version.__version__} has {major}.{minor}"
    )
