"""Loads the compiled backends, or says why there are none."""

import ctypes
import importlib
import importlib.util
import warnings
from importlib import metadata
from pathlib import Path
from types import ModuleType

# Wheels and their libraries, each after those that it needs. oneDNN's own wheels do not find one another.
_ONEDNN_LIBRARIES = (
    ("intel-cmplr-lib-rt", "libintlc.so.5"),
    ("intel-cmplr-lib-rt", "libimf.so"),
    ("tbb", "libtbb.so.12"),
    ("onednn-cpu-tbb", "libdnnl.so.3"),
)

_backends: dict[str, ModuleType | str] = {}  # by name: its module, or why there is none


def onednn() -> ModuleType | None:
    """The compiled module over oneDNN, or None after a warning that says why."""
    return _backend("oneDNN", "_onednn", _ONEDNN_LIBRARIES)


def onednn_error() -> str | None:
    """Why :func:`onednn` is None; None where it is a module."""
    onednn()
    found = _backends["oneDNN"]
    return found if isinstance(found, str) else None


def reject_onednn(reason: str) -> None:
    """Do without oneDNN from now on, and warn."""
    _reject("oneDNN", reason)


def cudnn() -> ModuleType | None:
    """The compiled module over cuDNN, or None. No warning: on most machines without it there is no GPU."""
    return _backend("cuDNN", "_cudnn", (), warn=False)


def cudnn_error() -> str | None:
    """Why :func:`cudnn` is None; None where it is a module."""
    cudnn()
    found = _backends["cuDNN"]
    return found if isinstance(found, str) else None


def reject_cudnn(reason: str) -> None:
    """Do without cuDNN from now on, and warn."""
    _reject("cuDNN", reason)


def cudnn_library() -> str:
    """The path of libcudnn.so.9 in NVIDIA's wheel; empty if that is not installed."""
    try:
        package = importlib.util.find_spec("nvidia.cudnn")
    except ModuleNotFoundError:  # no package nvidia
        return ""
    for folder in package.submodule_search_locations or () if package else ():
        path = Path(folder) / "lib" / "libcudnn.so.9"
        if path.exists():
            return str(path)
    return ""


def _backend(name: str, module: str, libraries: tuple[tuple[str, str], ...], warn=True) -> ModuleType | None:
    if name not in _backends:
        try:
            _backends[name] = _import(module, libraries)
        except (ImportError, OSError) as error:
            if warn:
                _reject(name, str(error))
            else:
                _backends[name] = str(error)
    found = _backends[name]
    return None if isinstance(found, str) else found


def _import(module: str, libraries: tuple[tuple[str, str], ...]) -> ModuleType:
    try:
        build = importlib.import_module("jax_cudnn_conv._build")  # written by CMake
    except ModuleNotFoundError:
        raise ImportError("it was not built (see CONTRIBUTING.md)") from None
    if build.ONEDNN_FROM_WHEELS:
        for wheel, library in libraries:
            _preload(wheel, library)
    return importlib.import_module(f"jax_cudnn_conv.{module}")


def _preload(wheel: str, library: str) -> None:
    """Load a library from where pip put it; where it is missing, the import that needs it names it."""
    try:
        files = metadata.files(wheel) or ()
    except metadata.PackageNotFoundError:
        return
    for path in (Path(str(file.locate())) for file in files if file.name == library):
        if path.exists():
            ctypes.CDLL(str(path.resolve()))


def _reject(name: str, reason: str) -> None:
    _backends[name] = reason
    platforms = {"oneDNN": "CPUs", "cuDNN": "GPUs"}[name]
    warnings.warn(
        f"jax_cudnn_conv runs on XLA's convolution on {platforms}: {name} is not available: {reason}",
        RuntimeWarning,
        stacklevel=2,
    )
