"""Options and fixtures of the tests."""

import os
import sys

if "--gpu" not in sys.argv:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

import harness
import hypothesis
import jax
import numpy as np
import problems
import pytest

import jax_cudnn_conv as jcc

jax.config.update("jax_enable_x64", True)  # every array in the tests states its dtype

hypothesis.settings.register_profile("ci", max_examples=300, deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("sweep", deadline=None, database=None, print_blob=True)
hypothesis.settings.load_profile("ci")


def pytest_addoption(parser):
    parser.addoption(
        "--problem",
        action="append",
        metavar="DESCRIPTOR",
        help="run the tests that take a problem on this one (see tests/problems.py) instead of their table",
    )

    parser.addoption(
        "--cudnn",
        action="store_true",
        help="run on the cuDNN backend, through a test double, instead of oneDNN",
    )
    parser.addoption(
        "--sanitize",
        action="store_true",
        help="with --cudnn in a process under AddressSanitizer: the double is built for it, too",
    )
    parser.addoption(
        "--gpu",
        action="store_true",
        help="run the tests that are about a real GPU, on it",
    )


def pytest_configure(config):
    if config.getoption("--cudnn"):
        import gpu_on_cpu

        gpu_on_cpu.install(sanitize=config.getoption("--sanitize"))


def pytest_ignore_collect(collection_path, config):
    """What is about cuDNN needs the double, which must not be in the process of the other tests."""
    if collection_path.name == "test_gpu.py":
        return not (config.getoption("--gpu") or config.getoption("--cudnn")) or None
    return (collection_path.name.startswith("test_cudnn_") and not config.getoption("--cudnn")) or None


def pytest_generate_tests(metafunc):
    """A test that takes a `problem` runs on its module's PROBLEMS."""
    if "problem" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--problem") or metafunc.module.PROBLEMS
        metafunc.parametrize("problem", [problems.parse(text) for text in chosen], ids=chosen)


@pytest.fixture(scope="session")
def native_missing():
    """Why there is no native backend here; None where there is one."""
    return harness.native_missing()


@pytest.fixture(params=["auto", "xla"])
def backend(request, native_missing):
    """The native backend wherever it has a kernel, and XLA's own convolution."""
    if request.param == "auto" and native_missing:
        pytest.skip(f"auto is xla: {native_missing}")
    return request.param


@pytest.fixture
def unpatched(native_missing):
    """There is a native backend, and JAX has its own lowering rules again afterwards."""
    if native_missing:
        pytest.skip(native_missing)
    yield
    jcc.unpatch_jax()


@pytest.fixture
def onednn(native_missing, request):
    """The compiled module over oneDNN."""
    if request.config.getoption("--cudnn"):
        pytest.skip("about oneDNN")
    if native_missing:
        pytest.skip(native_missing)
    from jax_cudnn_conv import _native

    return _native.onednn()


@pytest.fixture
def rng():
    """The same random numbers in every test."""
    return np.random.default_rng(20240229)
