"""The examples in docstrings, in README.md and on the pages of docs run, and give what they say."""

import doctest
import importlib

import harness
import jax
import pytest

import jax_cudnn_conv as jcc


@pytest.fixture(autouse=True)
def as_a_user():
    """32 bits, JAX's default; nothing patched afterwards."""
    jax.config.update("jax_enable_x64", False)
    yield
    jax.config.update("jax_enable_x64", True)
    jcc.unpatch_jax()


@pytest.mark.parametrize("name", ["_api", "explain", "lax", "linen", "nnx", "options", "patch"])
def test_docstrings(name, native_missing):
    if name in ("linen", "nnx"):
        pytest.importorskip("flax", reason="flax is an optional dependency")
    if name == "patch" and native_missing:
        pytest.skip(native_missing)
    module = importlib.import_module(f"jax_cudnn_conv.{name}")
    failed, attempted = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert attempted
    assert not failed


@pytest.mark.parametrize("page", ["README.md", "docs/flax.md"])
def test_pages(page):
    if page == "docs/flax.md":
        pytest.importorskip("flax", reason="flax is an optional dependency")
    assert "jcc" in harness.run_page(page)
