"""A test double for cuDNN: the real library plans with no GPU at hand, and the CPU executes the plans.

`build` compiles the double and stand-ins for two libraries that cuDNN looks for, `preload` loads them. Only
for a process that uses no GPU: JAX's CUDA plugin must never meet the stand-ins. double.h describes the
control functions.
"""

import ctypes
import dataclasses
import importlib.util
import os
import pathlib
import shutil
import subprocess
import tempfile

_HERE = pathlib.Path(__file__).resolve().parent
_INT64 = ctypes.c_int64
_CONTROL = {  # the result and the parameters of each function
    "double_set_device": (None, [ctypes.c_char_p]),
    "double_executions": (_INT64, []),
    "double_last_workspace": (_INT64, []),
    "double_last_engine": (_INT64, []),
    "double_fail_engine": (None, [_INT64, ctypes.c_int]),
    "double_delay_engine": (None, [_INT64, _INT64]),
    "double_fail_create": (None, [ctypes.c_int]),
    "double_handles": (_INT64, []),
    "double_records": (_INT64, []),
    "double_swap_padding": (None, [ctypes.c_int]),
    "double_reset": (None, []),
}


class Unavailable(Exception):
    """The double cannot be built here; the message says what is missing."""


@dataclasses.dataclass(frozen=True)
class Libraries:
    """The paths of what `build` made, and of the real cuDNN under the double."""

    cuda: pathlib.Path
    cublaslt: tuple[pathlib.Path, ...]
    double: pathlib.Path
    cudnn: pathlib.Path


def build(folder, sanitize=False):
    """Compiles into `folder` what is missing there, older than the sources, or made by another command.

    With `sanitize`, for a process under AddressSanitizer: a plain Python needs LD_PRELOAD=libasan.so, and
    LD_LIBRARY_PATH=`Libraries.cudnn.parent`, as its dlopen() hides from cuDNN its own folder.
    """
    gcc, gxx = _compiler("CC", "gcc"), _compiler("CXX", "g++")
    cudnn_headers = _wheel_folder("cudnn.h", "nvidia.cudnn")
    cuda_headers = _wheel_folder("cuda_runtime_api.h", "nvidia.cu13", "nvidia.cuda_runtime")
    cudnn = cudnn_headers.parent / "lib" / "libcudnn.so.9"
    if not cudnn.exists():
        raise Unavailable(f"no {cudnn}")

    folder = pathlib.Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    flags = ["-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
    if sanitize:
        flags += ["-g", "-fno-omit-frame-pointer", "-fsanitize=address"]

    def compile_to(name, compiler, sources, *arguments):
        target = folder / name
        paths = [str(_HERE / source) for source in sources.split()]
        _compile(target, [*compiler, *flags, f"-Wl,-soname,{name}", *paths, *arguments])
        return target

    return Libraries(
        cuda=compile_to("libcuda.so.1", gcc, "stand_in_cuda.c"),
        cublaslt=tuple(
            compile_to(f"libcublasLt.so.{major}", gcc, "stand_in_cublaslt.c", f"-DCUBLASLT_MAJOR={major}")
            for major in (12, 13)
        ),
        double=compile_to(
            "libcudnn_double.so",
            gxx,
            "double.cc compute.cc",
            "-std=c++20",
            *("-isystem", str(cudnn_headers), "-isystem", str(cuda_headers)),
            *("-Wl,--no-as-needed", f"-L{cudnn.parent}", f"-l:{cudnn.name}"),
            *(f"-Wl,-rpath,{cudnn.parent}", "-ldl"),
        ),
        cudnn=cudnn,
    )


def preload(libraries):
    """Loads the stand-ins, which cuDNN then finds by their names, and the double. Returns the double."""
    for path in (libraries.cuda, *libraries.cublaslt):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    double = ctypes.CDLL(str(libraries.double))
    for name, (result, parameters) in _CONTROL.items():
        function = getattr(double, name)
        function.restype, function.argtypes = result, parameters
    return double


def _compiler(variable, default):
    command = os.environ.get(variable, default).split()
    if not shutil.which(command[0]):
        raise Unavailable(f"no compiler {command[0]!r}")
    return command


def _wheel_folder(header, *packages):
    """The include folder of the first of `packages`, installed from wheels, that holds `header`."""
    for package in packages:
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:  # not even its parent
            continue
        for location in (spec and spec.submodule_search_locations) or ():
            include = pathlib.Path(location) / "include"
            if (include / header).exists():
                return include
    raise Unavailable(f"no {header} in an installed {' or '.join(packages)}")


def _compile(target, command):
    stamp = target.with_name(target.name + ".command")
    text = "\n".join(command)
    newest = max(path.stat().st_mtime for path in _HERE.iterdir() if path.suffix in (".c", ".cc", ".h"))
    if target.exists() and stamp.exists() and stamp.read_text() == text:
        if target.stat().st_mtime > newest:
            return
    # Under another name first: a process may be loading the old one, or building beside us.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = pathlib.Path(scratch) / target.name
        done = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
        made.replace(target)
        stamp.write_text(text)
