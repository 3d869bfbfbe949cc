"""Tables of results: whole where the output is no terminal, and as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

_WHOLE = 10_000  # columns; a table takes no more than it needs


@dataclass(frozen=True, kw_only=True)
class Results:
    """What was measured, as a table; each row has a text for each column."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str | None = None


def show(*tables: Results, as_json: bool) -> None:
    """Print tables, or with `as_json` a list of them, with numbers where a cell is a number."""
    if as_json:
        print(json.dumps([_as_data(table) for table in tables], indent=2, ensure_ascii=False))
        return
    for results in tables:
        table = Table(*results.columns, title=results.title, title_justify="left")
        for row in results.rows:
            table.add_row(*(cell.replace("`", "") for cell in row))
        print_table(table)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table of a page; the first column is text, the others are numbers."""
    cells = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return [f"| {' | '.join(row)} |" for row in cells]


def print_table(table: Table) -> None:
    """Print a table: fitted to the terminal, or as wide as it is where there is none."""
    Console(width=None if sys.stdout.isatty() else _WHOLE).print(table)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """`--json`, as `show` takes it."""
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def _as_data(results: Results) -> dict[str, Any]:
    return {
        "title": results.title,
        "columns": list(results.columns),
        "rows": [[_value(cell) for cell in row] for row in results.rows],
    }


def _value(cell: str) -> str | float:
    """The cell as a number, if it is one."""
    with suppress(ValueError):
        return float(cell.replace(",", ""))
    return cell
