"""The examples in docstrings, in README.md and on the pages of docs run, and give what they say."""

import doctest
import importlib
import pathlib
import re

import jax
import pytest

import jax_cudnn_conv as jcc

ROOT = pathlib.Path(__file__).parents[1]


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


def blocks(page):
    """The Python code of a page, in one piece: later blocks use the names of earlier ones."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S))


@pytest.mark.parametrize("page", ["README.md", "docs/flax.md"])
def test_pages(page):
    if page == "docs/flax.md":
        pytest.importorskip("flax", reason="flax is an optional dependency")
    code = blocks(page)
    assert "jax_cudnn_conv" in code
    exec(compile(code, page, "exec"), {})
