"""Put generated text into a page that people write around it."""

from __future__ import annotations

import textwrap
from pathlib import Path


def replace_between(page: Path, name: str, text: str) -> None:
    """Replace what stands in `page` between `<!-- name -->` and `<!-- /name -->`.

    Lines of prose are wrapped; tables, headings and lists stay as they are.

    Raises:
        ValueError: the page lacks a marker.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, found_begin, rest = page.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise ValueError(f"{page} needs the lines {begin} and {end}.")
    page.write_text(f"{before}{begin}\n\n{wrapped(text.strip())}\n\n{end}{after}")


def wrapped(text: str) -> str:
    return "\n".join(
        textwrap.fill(line, 100, break_long_words=False, break_on_hyphens=False)
        if line[:1].isalnum() or line[:1] == "`"
        else line
        for line in text.splitlines()
    )
