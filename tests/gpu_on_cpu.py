"""Runs the cuDNN backend on a machine without a GPU, by lowering programs for the CPU as those for CUDA.

cuDNN itself plans, for a GPU that is described to it; a test double of it computes on the CPU what the plans
say (see cudnn_double). The handlers are the real ones, called with no stream and with scratch memory of the
host. Only for a process of its own: `pytest --cudnn`, or `install()` first thing.
"""

import functools
import pathlib

import cudnn_double
from jax.interpreters import mlir

from jax_cudnn_conv import _devices, _lowering, _targets

FOLDER = pathlib.Path(__file__).parent.parent / "build" / "cudnn_double"

double = None  # the library, with its control functions, once `install` has run


def install(device="sm_90", known=True, sanitize=False):
    """Let every convolution on the CPU run on cuDNN for `device`.

    `known`: as in a process that has the GPU, which plans while it lowers; else as in an export.
    """
    global double
    if double is None:
        libraries = cudnn_double.build(FOLDER.with_name(FOLDER.name + "_asan" * sanitize), sanitize)
        double = cudnn_double.preload(libraries)
        module = _targets.cudnn()
        assert module is not None, "the cuDNN backend was not built"
        module.set_library_path(str(libraries.double), only=True)
        for name, handler in module.host_targets().items():
            _targets.jax.ffi.register_ffi_target(name, handler, platform="cpu")
        for primitive, rule in _lowering.RULES.items():
            mlir.register_lowering(primitive, functools.partial(rule, "cuda"), platform="cpu")
    use_device(device, known)
    return double


def use_device(device, known=True):
    """The GPU that ordinal 0 stands for. Plans of another one may be in the cache: call it first."""
    double.double_set_device(_devices.described(device, _targets.cudnn()).description.encode())
    _devices.live = (lambda module: _devices.described(device, module)) if known else (lambda module: None)
