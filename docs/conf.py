"""Sphinx configuration."""

project = "bype"
author = "The bype developers"
copyright = "2026, The bype developers"
extensions = ["myst_parser", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "bype"
exclude_patterns = ["_build"]
