from importlib.metadata import version as installed_version

from gigl_loader.loader.keywords import GROUPS

project = "gigl_loader"
author = "The gigl_loader authors"
copyright = "the gigl_loader authors, Apache-2.0"
version = release = installed_version("gigl_loader")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",  # a link to the source beside each name
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"gigl_loader {release}"

default_role = "py:obj"  # `name` in a docstring is a link where there is something to link to
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [
    ("Source", "notes_style"),
    *((title, "params_style") for title in GROUPS),  # the loaders' keywords
]
autosummary_generate = False  # the tables alone: each name is explained on the same page
copybutton_exclude = ".linenos, .gp, .go"  # of a console: the command, not prompt and output
html_static_path = ["_static"]
html_css_files = ["wrap.css"]  # code is wider than the theme expects
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
