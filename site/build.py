"""Build the site into build/site: `make site`, or `python site/build.py` with phalanx[docs].

The pages are those of docs/, which GitHub shows too. Added here are what GitHub does not need: the
navigation, from the lists of docs/index.md; a page for each script of examples/gallery/; and the
API reference, from the docstrings.
"""

import ast
import importlib
import inspect
import re
import shutil
import sys
import textwrap
from pathlib import Path

from sphinx.cmd.build import main as sphinx

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
SOURCE = BUILD / "site-source"
OUTPUT = BUILD / "site"
GALLERY = ROOT / "examples" / "gallery"

MODULES = (
    "phalanx", "phalanx.callbacks", "phalanx.checkpoint", "phalanx.clip", "phalanx.data",
    "phalanx.schedules", "phalanx.preemption", "phalanx.monitoring", "phalanx.testing",
    "phalanx.testing.chaos", "phalanx.errors",
)  # fmt: skip

_LINK = re.compile(r"\]\((?P<target>\.\./[^)\s]+)\)")
_LISTED = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<page>[\w/-]+)\.md\)")
_GROUP = re.compile(r"^\*\*(?P<caption>.+)\*\*$", re.MULTILINE)


def main():
    """Prepare the pages, and let Sphinx build them; a warning is an error."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.rmtree(OUTPUT, ignore_errors=True)
    shutil.copytree(ROOT / "docs", SOURCE)
    for page in sorted(SOURCE.rglob("*.md")):
        page.write_text(inward(page))
    for script in sorted(GALLERY.glob("*.py")):
        write("gallery", script.stem, gallery_page(script))
    for module in MODULES:
        write("api", module, api_page(module), "rst")
    add_navigation()
    words = ["-W", "--keep-going", "-q", "-b", "html", "-d", str(BUILD / "site-doctrees")]
    code = sphinx([*words, "-c", str(ROOT / "site"), str(SOURCE), str(OUTPUT)])
    if code == 0:
        print(f"the site is in {OUTPUT.relative_to(ROOT)}: open {OUTPUT / 'index.html'}")
    return code


def write(folder, name, text, suffix="md"):
    path = SOURCE / folder / f"{name}.{suffix}"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def inward(page):
    """A page's text, with links to files outside of docs/ turned to pages of the site."""
    original = ROOT / "docs" / page.relative_to(SOURCE)

    def replaced(match):
        path = (original.parent / match["target"]).resolve()
        if path.is_relative_to(ROOT / "docs"):
            return match[0]
        up = "../" * (len(page.relative_to(SOURCE).parts) - 1)
        if path.parent == GALLERY and path.suffix == ".py":
            return f"]({up}gallery/{path.stem}.md)"
        return f"]({up}files/{file_page(path)}.md)"

    return _LINK.sub(replaced, page.read_text())


def file_page(path):
    """The name of a page that shows a file of the repository."""
    relative = path.relative_to(ROOT)
    name = "-".join(relative.with_suffix("").parts)
    text = path.read_text()
    shown = text if path.suffix == ".md" else f"# `{relative}`\n\n{code(text, 'python')}"
    write("files", name, f"---\norphan: true\n---\n\n{shown}")
    return name


def code(text, language):
    return f"````{language}\n{text.rstrip()}\n````\n"


def gallery_page(script):
    """A script, and what it prints on one device and on two workers."""
    text = script.read_text()
    title = text.split('"""')[1].split("\n")[0]
    name = script.stem.replace("_", " ").capitalize()
    outputs = GALLERY / "outputs"
    parts = [f"# {name}\n\n{title}\n\n{code(text, 'python')}"]
    for heading, kind in (("On one device", "one"), ("On two workers", "two")):
        path = outputs / f"{script.stem}.{kind}.txt"
        if path.exists():  # `python benchmarks/gallery.py --write` writes it
            parts.append(f"## {heading}\n\n{code(path.read_text(), 'console')}")
    return "\n".join(parts)


def written_signature(function):
    """The arguments of a function as its source has them."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    return f"({ast.unparse(definition.args)})"


def api_page(module):
    """A module's docstring, and each of its public names."""
    there = importlib.import_module(module)
    lines = [f"``{module}``", "=" * (len(module) + 4), "", f".. automodule:: {module}", ""]
    for name in sorted(public_names(there), key=str.lower):
        value = getattr(there, name)
        if inspect.isclass(value):
            lines += [
                f".. autoclass:: {module}.{name}",
                "   :members:",
                "   :show-inheritance:",
                "",
            ]
        elif callable(value):
            # autodoc reads defaults in the source, so it cannot show a signature made elsewhere.
            shown = written_signature(value) if hasattr(value, "__signature__") else ""
            lines += [f".. autofunction:: {module}.{name}{shown}", ""]
        elif not inspect.ismodule(value) and not name.startswith("__"):
            lines += [f".. autodata:: {module}.{name}", "   :no-value:", ""]
    return "\n".join(lines)


def public_names(module):
    """Those of `__all__`, or the classes of a module that has none."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return listed
    return [n for n, v in vars(module).items() if inspect.isclass(v) and not n.startswith("_")]


def add_navigation():
    """Table of contents of the sidebar: the lists of the index, the gallery, the API."""
    index = SOURCE / "index.md"
    text = index.read_text()
    _, *parts = _GROUP.split(text)
    groups = []
    for caption, listed in zip(parts[::2], parts[1::2], strict=True):
        entries = [entry(match) for match in _LISTED.finditer(listed)]
        groups.append((caption, [each for each in entries if "decisions/" not in each]))
    groups.append(("API reference", [f"api/{module}" for module in MODULES]))
    index.write_text(text + "".join(toctree(pages, caption) for caption, pages in groups))
    nest("architecture", "decisions")
    nest("gallery", "gallery")


def entry(match):
    """A page below "Coming from" needs no such words of its own."""
    page = match["page"]
    return f"{match['text']} <{page}>" if page.startswith("coming-from/") else page


def nest(page, folder):
    """Put the pages of a folder below a page."""
    pages = sorted(path.stem for path in (SOURCE / folder).glob("*.md"))
    path = SOURCE / f"{page}.md"
    path.write_text(path.read_text() + toctree([f"{folder}/{name}" for name in pages]))


def toctree(pages, caption=None):
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "```{toctree}", *options, "", *pages, "```", ""])


if __name__ == "__main__":
    sys.exit(main())
