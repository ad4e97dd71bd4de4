"""What is installed, loaded and supported, for people and bug reports."""

import platform
import sys

import jax
import jaxlib.version

from jax_cudnn_conv import _native
from jax_cudnn_conv.options import current


def show_config() -> None:
    """Print the versions compiled and loaded, the devices, and which backends are available.

    ``python -m jax_cudnn_conv`` does the same. Put its output into bug reports.

    Example:
      >>> import jax_cudnn_conv as jcc
      >>> jcc.show_config()  # doctest: +ELLIPSIS
      jax_cudnn_conv ...
    """
    from jax_cudnn_conv import __version__

    lines = {
        "jax_cudnn_conv": __version__,
        "python": f"{sys.version.split()[0]} on {platform.platform()}",
        "jax": f"{jax.__version__}, jaxlib {jaxlib.version.__version__}",
        "devices": ", ".join(f"{d.platform}:{d.id} {d.device_kind}" for d in jax.devices()),
        "options": current(),
        "oneDNN (CPU)": _onednn(),
        "cuDNN (CUDA)": _cudnn(),
        "XLA": "every platform, dtype and rank that the backends above lack",
    }
    for name, value in lines.items():
        print(f"{name:16} {value}")


def _onednn() -> str:
    module = _native.onednn()
    if module is None:
        return f"not available: {_native.onednn_error()}"
    info = module.info()
    return ", ".join(f"{key} {value}" for key, value in info.items())


def _cudnn() -> str:
    module = _native.cudnn()
    if module is None:
        return f"not available: {_native.cudnn_error()}"
    try:
        info = module.info()
    except RuntimeError as error:
        return str(error)
    return ", ".join(f"{key} {value}" for key, value in info.items())
