"""Sphinx: pages in Markdown, the API from docstrings. `make docs` builds them and fails on every warning."""

from importlib import metadata

project = "jax_cudnn_conv"
copyright = "The jax_cudnn_conv authors"
release = metadata.version("jax-cudnn-conv")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
autodoc_typehints = "none"  # the docstrings say more
exclude_patterns = ["_build"]
html_theme = "alabaster"
nitpick_ignore = [("py:class", "jax_cudnn_conv._kernel.Kernel")]  # has no page of its own
