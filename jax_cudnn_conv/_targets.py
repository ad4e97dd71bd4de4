"""The custom calls of the native library, made known to XLA."""

import functools
import os
import re
from pathlib import Path
from typing import Any

import jax
import jaxlib.version

from jax_cudnn_conv import _native

# By the role of what they compute. The number changes when the meaning of a call does.
TARGETS = {
    "y": "jax_cudnn_conv_onednn_fwd_v1",
    "x": "jax_cudnn_conv_onednn_dgrad_v1",
    "w": "jax_cudnn_conv_onednn_wgrad_v1",
}


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
    # JAX's CPU backend cannot start with a handler of a newer API than its own, so look before.
    header = (Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h").read_text()
    major, minor = (
        int(re.search(rf"define XLA_FFI_API_{part} (\d+)", header)[1])  # type: ignore[index]
        for part in ("MAJOR", "MINOR")
    )
    built_major, built_minor = module.ffi_api_version()
    if built_major != major or built_minor > minor:
        _native.reject_onednn(
            f"it was built for XLA's FFI {built_major}.{built_minor}; "
            f"jaxlib {jaxlib.version.__version__} has {major}.{minor}"
        )
        return None
    plans = _environment_integer("JAX_CUDNN_CONV_PLANS", 0)
    if plans is not None:
        module.set_plan_cache_capacity(plans)
    threads = _environment_integer("JAX_CUDNN_CONV_NUM_THREADS", 1)
    if threads is not None:
        module.set_num_threads(threads)
    for name, capsule in module.targets().items():
        jax.ffi.register_ffi_target(name, capsule, platform="cpu")
    return module
