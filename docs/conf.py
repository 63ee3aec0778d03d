"""Sphinx configuration."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for pictures.py and house.py

project = "bype"
author = "The bype developers"
copyright = "2026, The bype developers"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "bype"
html_static_path = ["_static"]
html_css_files = ["pictures.css"]
html_theme_options = {"top_of_page_buttons": []}
exclude_patterns = ["_build", "gallery"]
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
add_module_names = False
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",  # written by the build; files called plot_* are run, others shown
    "within_subsection_order": "FileNameSortKey",
    "reset_modules": ("matplotlib", "pictures.set_style"),
    "image_srcset": ["2x"],
    "thumbnail_size": (480, 200),  # most pictures are wide
    "download_all_examples": False,
    "show_signature": False,
    "capture_repr": (),
    "default_thumb_file": str(Path(__file__).parent / "results" / "pictures" / "front.png"),
    "remove_config_comments": True,
    "write_computation_times": False,
    "min_reported_time": 3600,  # how busy the machine was is of no interest
}


def _escape_stars(app, what, name, obj, options, lines):
    """Let (B, *data_shape) in a docstring be a shape and not the start of emphasis."""
    lines[:] = [re.sub(r"\*(?=data_shape|shape)", r"\\*", line) for line in lines]


def _trim_blocks(app, docname, source):
    """Leave out the blank line at the end of a block, which doctest needs and a page does not."""
    source[0] = re.sub(r"\n\n```\n(?=\n|\Z)", "\n```\n", source[0])


def setup(app):
    """Connect what is above, and draw what pages show."""
    import house

    house.write(Path(__file__).parent / "development" / "house.svg")
    app.connect("autodoc-process-docstring", _escape_stars)
    app.connect("source-read", _trim_blocks)
