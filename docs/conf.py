"""Sphinx settings. `make docs` builds docs/_build/html, warnings as errors, without the network."""

import re
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "extensions"))

project = "tapejax"
author = "the tapejax authors"
copyright = "the tapejax authors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "mathml", "mirrored"]
exclude_patterns = ["_build", "extensions", "static"]
suppress_warnings = ["myst.header"]  # a page made by a program may start its parts at any level

# --- the look: everything comes with the theme, nothing from elsewhere --------------------------------------
html_theme = "sphinx_book_theme"
html_title = "tapejax"
html_theme_options = {
    "show_toc_level": 2,
    "navbar_persistent": [],  # the side bar has the search already
    "use_download_button": False,
    "use_fullscreen_button": False,
}
html_static_path = ["static"]
html_css_files = ["formulas.css"]
html_math_renderer = "mathml"
html_copy_source = False

# --- pages ------------------------------------------------------------------------------------------------
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist", "attrs_inline"]
myst_heading_anchors = 3
default_role = "literal"  # `x` in a docstring is code

# --- reference --------------------------------------------------------------------------------------------
autodoc_member_order = "bysource"
autodoc_typehints = "none"
add_module_names = False


def as_prose(app, what, name, obj, options, lines):
    """Our docstrings are plain text: a star is a star."""
    session = False
    for number, line in enumerate(lines):
        session = bool(line.strip()) and (session or line.lstrip().startswith(">>>"))
        if not session:
            parts = line.split("`")
            parts[::2] = [re.sub(r"[*|]|_\b", r"\\\g<0>", part) for part in parts[::2]]
            lines[number] = "`".join(parts)


# --- notebooks --------------------------------------------------------------------------------------------
# The tutorial is the notebooks, which live beside the package and hold no outputs: copied here, run here,
# and run again only when they change.
nb_execution_mode = "cache"
nb_execution_timeout = 240
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_mime_priority_overrides = [("*", "text/html", 0)]  # a page cannot run a widget; its HTML it can show
nb_ipywidgets_js = {}  # and needs no scripts from elsewhere for it

tutorial = HERE / "tutorial"
tutorial.mkdir(exist_ok=True)
for notebook in sorted((HERE.parent / "notebooks").glob("[0-9]*.ipynb")):
    copied = tutorial / notebook.name
    if not copied.exists() or copied.read_bytes() != notebook.read_bytes():
        shutil.copy(notebook, copied)
for copied in tutorial.glob("*.ipynb"):
    if not (HERE.parent / "notebooks" / copied.name).exists():
        copied.unlink()


# --- links ------------------------------------------------------------------------------------------------
def inside(app, docname, source):
    """Links that are right in the repository, made right in the built pages; and no blank line after a session."""
    depth = "../" * docname.count("/")
    if not docname.startswith("tutorial/"):
        source[0] = source[0].replace(f"({depth}../notebooks/", f"({depth}tutorial/").replace("\n\n```\n", "\n```\n")


def setup(app):
    app.connect("source-read", inside)
    app.connect("autodoc-process-docstring", as_prose)
