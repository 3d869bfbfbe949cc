"""Sphinx's configuration. `site/build.py` prepares the pages and starts Sphinx: `make site`."""

import ast
import re
import textwrap
from importlib.metadata import version as version_of
from itertools import takewhile

project = "Phalanx"
author = "The Phalanx authors"
project_copyright = "The Phalanx authors"
version = release = version_of("phalanx")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
default_role = "literal"  # `name` in docstrings

myst_heading_anchors = 4  # as GitHub makes them

autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # attributes that are documented twice

html_theme = "furo"
html_title = f"Phalanx {version}"
html_static_path = ["static"]
html_css_files = ["phalanx.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1a56b0", "color-brand-content": "#1a56b0"},
    "dark_css_variables": {"color-brand-primary": "#7db3ff", "color-brand-content": "#7db3ff"},
}
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .go"

_SECTION = re.compile(r"\w+:$")


def mark_code(app, what, name, obj, options, lines):
    """Make code blocks of the indented paragraphs of a docstring."""
    marked, before = [], ""
    for at, line in enumerate(lines):
        starts = line.startswith("    ") and marked and not marked[-1].strip()
        if starts and not before.startswith(" ") and not _SECTION.match(before):
            block = takewhile(lambda each: each.startswith(" ") or not each, lines[at:])
            marked += [f".. code-block:: {lexer_of(block)}", ""]
        marked.append(line)
        before = line if line.strip() else before
    lines[:] = marked


def lexer_of(lines):
    """Python, or a drawing."""
    try:
        ast.parse(textwrap.dedent("\n".join(lines)))
    except SyntaxError:
        return "text"
    return "python"


def skip_hooks(app, what, name, obj, skip, options):
    """Leave out Keras's hooks, which a callback implements and a script does not call."""
    hook = re.match(r"on_(train|test|predict|epoch|batch)|set_(model|params)$", name)
    return True if hook and what == "class" else None


def setup(app):
    """Before napoleon, which takes the sections of a docstring apart."""
    app.connect("autodoc-process-docstring", mark_code, priority=400)
    app.connect("autodoc-skip-member", skip_hooks)
