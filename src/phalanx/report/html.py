"""One self-contained HTML page: what it holds as values, and how that becomes text.

Jinja escapes every text of the run; figures go in as JSON that cannot end its element.
The page's own policy forbids it to load anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from phalanx.report.figure_style import Figure


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of texts; `numeric` columns are set to the right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page under a heading."""

    title: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not self.figures and not any(table.rows for table in self.tables)


@dataclass(frozen=True, kw_only=True)
class Page:
    """What the page shows.

    Attributes:
        title: the run's name, or the names of those compared.
        subtitle: what the run was, in a line.
        state: its state in words, and `tone`: "good", "bad" or "open".
        cards: the most important numbers: (label, value).
        trouble: an error report, shown as it is.
        damages: what could not be read.
        gaps: what was not recorded.
        footer: who made the page, and when.
    """

    title: str
    subtitle: str
    state: str
    tone: str
    cards: Sequence[tuple[str, str]]
    trouble: str | None
    damages: Sequence[str]
    gaps: Sequence[str]
    sections: Sequence[Section]
    footer: str


def render(page: Page) -> str:
    """The page as one HTML document."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {"figure_json": figure_json, "side_by_side": side_by_side}
    template = environment.from_string(_read("page.html"))
    return template.render(
        page=page,
        sections=[section for section in page.sections if not section.is_empty],
        has_steps=any(f.has_steps for section in page.sections for f in section.figures),
        style=Markup(_read("page.css")),
        script=Markup(_read("page.js")),
        plotly=Markup(get_plotlyjs().replace("</script", "<\\/script")),
    )


def side_by_side(figures: Sequence[Figure]) -> list[Figure]:
    """The figures, two in a row; one that would leave half a row empty takes all of it."""
    found: list[Figure] = []
    is_open = False
    for figure in figures:
        if figure.wide and is_open:
            found[-1] = replace(found[-1], wide=True)
        found.append(figure)
        is_open = not figure.wide and not is_open
    if is_open:
        found[-1] = replace(found[-1], wide=True)
    return found


def figure_json(figure: Figure) -> Markup:
    """A figure as JSON for an element of script: no "<" in it can end that."""
    text = figure.plot.to_json()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _read(name: str) -> str:
    return files("phalanx.report").joinpath(name).read_text(encoding="utf-8")
