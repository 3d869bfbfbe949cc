"""The verdicts as a table: on a terminal, in Markdown, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.table import Table
from tables import print_table

from equivalence.verdict import Verdict

COLUMNS = {
    "keras-mirrored": "Keras 3, mirrored",
    "keras-multiworker": "Keras 3, multi-worker",
    "phalanx-mirrored": "Phalanx, mirrored",
    "phalanx-multiworker": "Phalanx, multi-worker",
}

Verdicts = Mapping[str, Mapping[str, Verdict]]
"""By case, then by column."""


def rows(verdicts: Verdicts) -> list[list[str]]:
    """A row a case, and last how many are right."""
    made = [
        [case.replace("_", " "), *(cells[column].text for column in COLUMNS)]
        for case, cells in verdicts.items()
    ]
    right = [sum(cells[column].right for cells in verdicts.values()) for column in COLUMNS]
    return [*made, ["right", *(f"{count} of {len(verdicts)}" for count in right)]]


def show(verdicts: Verdicts, title: str) -> None:
    """On the terminal."""
    table = Table("", *COLUMNS.values(), title=title, title_justify="left")
    *cases, total = rows(verdicts)
    for row in cases:
        table.add_row(row[0], *(c if c == "right" else f"[red]{c}[/red]" for c in row[1:]))
    table.add_section()
    table.add_row(*total, style="bold")
    print_table(table)


def markdown(verdicts: Verdicts) -> str:
    """For the documentation."""
    *cases, total = rows(verdicts)
    lines = [["", *COLUMNS.values()], ["---"] * (len(COLUMNS) + 1), *cases]
    return "\n".join(_line(cells) for cells in [*lines, [f"**{cell}**" for cell in total]])


def as_data(verdicts: Verdicts) -> dict[str, Any]:
    """For programs; crashes with their whole message."""
    return {
        case: {column: asdict(verdict) for column, verdict in cells.items()}
        for case, cells in verdicts.items()
    }


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
