"""Descriptions of GPUs in the JSON form that cuDNN plans for, whether it runs on one or not."""

import ctypes
import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax


class Gpu(NamedTuple):
    """A GPU to plan for: ten times its compute capability, and cuDNN's JSON description of it."""

    capability: int
    description: str


# One of each architecture, from NVIDIA's public specifications (not read off the devices). `deviceVer` is a
# hundred times the compute capability.
_H200: dict[str, Any] = {
    "maxGridSize": [2147483647, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536,
    "multiProcessorCount": 132,
    "smCountOrigin": 0,
    "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448,
    "oversizedSharedMemoryPerBlock": 0,
    "reservedSharedMemoryPerBlock": 1024,
    "maxRegistersPerSM": 65536,
    "maxCtasPerSM": 32,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048,
    "pciDeviceId": 0,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
    "totalGlobalMem": 150754820096,
    "smClockRateKHz": 1980000,
    "memClockRateKHz": 3201000,
    "memoryBusWidth": 6144,
    "l2CacheSize": 62914560,
    "cudaDeviceId": 0,
    "deviceVer": 900,
    "driverVer": 13000,
    "deviceName": "NVIDIA H200",
}
_T4 = _H200 | {
    "multiProcessorCount": 40,
    "maxSharedMemoryPerBlockOptin": 65536,
    "reservedSharedMemoryPerBlock": 0,
    "maxCtasPerSM": 16,
    "maxThreadsPerSM": 1024,
    "totalGlobalMem": 15655829504,
    "smClockRateKHz": 1590000,
    "memClockRateKHz": 5001000,
    "memoryBusWidth": 256,
    "l2CacheSize": 4194304,
    "deviceVer": 750,
    "deviceName": "Tesla T4",
}
_A100 = _H200 | {
    "multiProcessorCount": 108,
    "maxSharedMemoryPerBlockOptin": 166912,
    "totalGlobalMem": 42297786368,
    "smClockRateKHz": 1410000,
    "memClockRateKHz": 1215000,
    "memoryBusWidth": 5120,
    "l2CacheSize": 41943040,
    "deviceVer": 800,
    "deviceName": "NVIDIA A100-SXM4-40GB",
}
_L4 = _H200 | {
    "multiProcessorCount": 58,
    "maxSharedMemoryPerBlockOptin": 101376,
    "maxCtasPerSM": 24,
    "maxThreadsPerSM": 1536,
    "totalGlobalMem": 23580639232,
    "smClockRateKHz": 2040000,
    "memClockRateKHz": 6251000,
    "memoryBusWidth": 192,
    "l2CacheSize": 50331648,
    "deviceVer": 890,
    "deviceName": "NVIDIA L4",
}
_B200 = _H200 | {
    "multiProcessorCount": 148,
    "totalGlobalMem": 191514345472,
    "smClockRateKHz": 1965000,
    "memClockRateKHz": 3996000,
    "memoryBusWidth": 8192,
    "l2CacheSize": 132644864,
    "deviceVer": 1000,
    "deviceName": "NVIDIA B200",
}
_RTX_5090 = _H200 | {
    "multiProcessorCount": 170,
    "maxSharedMemoryPerBlockOptin": 101376,
    "maxCtasPerSM": 24,
    "maxThreadsPerSM": 1536,
    "totalGlobalMem": 33679540224,
    "smClockRateKHz": 2407000,
    "memClockRateKHz": 14001000,
    "memoryBusWidth": 512,
    "l2CacheSize": 100663296,
    "deviceVer": 1200,
    "deviceName": "NVIDIA GeForce RTX 5090",
}
DESCRIBED = {f"sm_{d['deviceVer'] // 10}": d for d in (_T4, _A100, _L4, _H200, _B200, _RTX_5090)}


def described(name: str, module: Any) -> Gpu:
    """The GPU that stands for an architecture, such as "sm_90", with cuDNN ready to plan for it."""
    if name not in DESCRIBED:
        raise ValueError(f"device must be one of {', '.join(DESCRIBED)}; got {name!r}")
    _load_for_planning(module)
    description = DESCRIBED[name]
    return Gpu(description["deviceVer"] // 10, json.dumps(description))


def platform() -> str:
    """The default platform as lowering rules name it: JAX calls both CUDA's and ROCm's "gpu"."""
    name = jax.default_backend()
    if name != "gpu":
        return name
    return "cuda" if _has_platform("cuda") else "rocm"


def _has_platform(name: str) -> bool:
    try:
        return bool(jax.devices(name))
    except RuntimeError:
        return False


@functools.cache
def live(module: Any) -> Gpu | None:
    """The first GPU of this process, or None where it has none."""
    try:
        device = jax.local_devices(backend="cuda")[0]
    except RuntimeError:  # no such platform: a program is exported from another machine
        return None
    description = module.describe_device(device.local_hardware_id)
    return Gpu(json.loads(description)["deviceVer"] // 10, description)


def _load_for_planning(module: Any) -> None:
    """Load cuDNN on a machine that may have no GPU, or raise RuntimeError with what is missing.

    cuDNN's compiled engines abort the process where they do not find cuBLAS, so that is looked for first.
    """
    folder = Path(module.info()["path"]).parent
    if not (folder / "libcudnn_engines_precompiled.so.9").exists():
        return
    errors = []
    for path in ("libcublasLt.so.13", "libcublasLt.so.12", *_cublas_of_wheels(folder)):
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            return
        except OSError as error:
            errors.append(str(error))
    raise RuntimeError(f"cuDNN needs cuBLAS to plan (pip install nvidia-cublas): {'; '.join(errors)}")


def _cublas_of_wheels(cudnn_folder: Path) -> list[Path]:
    """Where pip puts cuBLAS beside cuDNN: nvidia/cu13/lib, or nvidia/cublas/lib for CUDA 12."""
    return sorted(cudnn_folder.parent.parent.glob("*/lib/libcublasLt.so.1?"))
