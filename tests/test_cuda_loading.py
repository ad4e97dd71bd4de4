"""Finding cuDNN, or saying in one line what was found and what is wanted; each in a process of its own."""

import subprocess

import harness
import pytest

NO_WHEEL = """
from jax_cudnn_conv import _targets
_targets.cudnn().set_library_path("")
"""

FIRST_USE = """
from jax_cudnn_conv import _targets
module = _targets.cudnn()
try:
    print(module.info())
except RuntimeError as error:
    print("error:", error)
"""


def library(folder, source, name="libcudnn.so.9"):
    """A library that says it is cuDNN, or is something else."""
    (folder / "source.c").write_text(source)
    path = folder / name
    command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", path, folder / "source.c"]
    subprocess.run(command, check=True)
    return path


def first_use(path):
    """What is said of a library that the process has loaded before, as PyTorch may have."""
    return harness.python(
        "-c", f"import ctypes; ctypes.CDLL({str(path)!r}, ctypes.RTLD_GLOBAL)\n" + FIRST_USE
    )


@pytest.mark.parametrize(("number", "version"), [(90100, "9.1.0"), (8907, "0.89.7"), (100000, "10.0.0")])
def test_c45_another_version_is_there_first(tmp_path, number, version):
    path = library(tmp_path, f"unsigned long cudnnGetVersion(void) {{ return {number}; }}")
    told = first_use(path)
    assert told.startswith(
        f"error: found cuDNN {version} in {path}; wanted: cuDNN 9, 9.8.0 or later (built with "
    )
    assert told.count("\n") == 1


def test_another_library_of_that_name(tmp_path):
    told = first_use(library(tmp_path, "int x;"))
    assert told.startswith(
        "error: what was loaded as libcudnn.so.9 is not cuDNN; wanted: cuDNN 9, 9.8.0 or later"
    )


def test_no_cudnn():
    told = harness.python("-c", NO_WHEEL + FIRST_USE, LD_LIBRARY_PATH="")
    assert told.startswith("error: cuDNN was not found; wanted: cuDNN 9, 9.8.0 or later")
    assert "libcudnn.so.9: cannot open shared object file" in told


def test_the_import_loads_nothing_of_cuda():
    """No library of NVIDIA's, though the backend is there and its targets are registered."""
    program = """
import jax_cudnn_conv as jcc
from jax_cudnn_conv import _targets
assert _targets.cudnn() is not None
maps = open("/proc/self/maps").read()
assert "_cudnn." in maps and "libcud" not in maps and "libcublas" not in maps, maps
import jax, jax.numpy as jnp
print(jax.jit(jcc.conv)(jnp.ones((1, 4, 1)), jnp.ones((3, 1, 1))).ravel())
"""
    assert harness.python("-c", program).strip() == "[2. 3. 3. 2.]"


def test_what_is_shown_without_cudnn():
    program = NO_WHEEL + "import jax_cudnn_conv as jcc; jcc.show_config()"
    told = harness.python("-c", program, LD_LIBRARY_PATH="")
    line = next(text for text in told.splitlines() if text.startswith("cuDNN (CUDA)"))
    assert "cuDNN was not found" in line


def test_explain_for_a_gpu_needs_cudnn():
    program = """
import jax.numpy as jnp, jax_cudnn_conv as jcc
try:
    jcc.explain(jcc.conv, jnp.ones((1, 4, 1)), jnp.ones((3, 1, 1)), device="sm_90")
except RuntimeError as error:
    print(error)
"""
    told = harness.python("-c", NO_WHEEL + program, LD_LIBRARY_PATH="")
    assert told.startswith("cuDNN was not found; wanted")


def test_explain_without_cublas():
    """cuDNN would end the process for want of it, so that is looked for first."""
    program = """
import jax.numpy as jnp, jax_cudnn_conv as jcc
try:
    print(jcc.explain(jcc.conv, jnp.ones((1, 4, 1)), jnp.ones((3, 1, 1)), device="sm_90")[0].kernel.backend)
except RuntimeError as error:
    print(error)
"""
    told = harness.python("-c", program, LD_LIBRARY_PATH="").strip()
    assert told == "cudnn" or "pip install nvidia-cublas" in told or told.startswith("cuDNN was not found"), (
        told
    )


def test_without_the_backend():
    """A build without it, or one that this machine cannot load: XLA on GPUs, with the reason."""
    program = """
import sys
sys.modules["jax_cudnn_conv._cudnn"] = None
import warnings
warnings.simplefilter("error")  # no warning: most such machines have no GPU
import jax, jax.numpy as jnp, jax_cudnn_conv as jcc
from jax import export
x, w = jnp.ones((1, 4, 1)), jnp.ones((3, 1, 1))
text = export.export(jax.jit(jcc.conv), platforms=["cuda"])(x, w).mlir_module()
assert "stablehlo.convolution" in text and "custom_call" not in text
jcc.show_config()
try:
    jcc.explain(jcc.conv, x, w, device="sm_90")
except RuntimeError as error:
    print(error)
"""
    told = harness.python("-c", program)
    assert "cuDNN (CUDA)     not available: " in told
    assert "explain(device='sm_90') needs cuDNN: " in told
