"""The documentation, cut into its blocks, links and headings."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_AT_THE_ROOT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES = sorted([*_AT_THE_ROOT, ROOT / "examples" / "README.md", *ROOT.glob("docs/**/*.md")])

_FENCE = re.compile(
    r"(?:^ *<!-- not run: (?P<why>.+?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w+)\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\[[^\]\n]*(?:\n[^\]\n]*)?\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: where it is, what it holds, and why it is not run, if it is not."""

    page: str
    line: int
    language: str
    body: str
    why_not: str | None

    def __str__(self):
        return f"{self.page}:{self.line}"

    @property
    def commands(self):
        """The commands in it, as words: all lines of bash, the prompts of a console."""
        lines = self.body.replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        words = [shlex.split(line, comments=True) for line in lines]
        return [w for w in words if w]

    @property
    def output(self):
        """What a console shows besides commands."""
        return [line for line in self.body.splitlines() if not line.startswith("$ ")]


def blocks(*languages):
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in _FENCE.finditer(text):
            if match["language"] in languages:
                body = re.sub(rf"^{match['indent']}", "", match["body"], flags=re.MULTILINE)
                line = text.count("\n", 0, match.start("language")) + 1
                name = str(page.relative_to(ROOT))
                found.append(Block(name, line, match["language"], body, match["why"]))
    return found


def prose(page):
    """A page's text without its fenced blocks."""
    return _FENCE.sub("", page.read_text())


def links(page):
    return [match["target"] for match in _LINK.finditer(prose(page))]


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    titles = [match["title"].lower() for match in _HEADING.finditer(prose(page))]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}
