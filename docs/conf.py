"""Sphinx configuration."""

import re

project = "bype"
author = "The bype developers"
copyright = "2026, The bype developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "bype"
exclude_patterns = ["_build"]
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
add_module_names = False


def _escape_stars(app, what, name, obj, options, lines):
    """Let (B, *data_shape) in a docstring be a shape and not the start of emphasis."""
    lines[:] = [re.sub(r"\*(?=data_shape|shape)", r"\\*", line) for line in lines]


def setup(app):
    """Connect what is above."""
    app.connect("autodoc-process-docstring", _escape_stars)
