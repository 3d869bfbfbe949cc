"""Put generated text into a page that people write around it."""

from __future__ import annotations

from pathlib import Path


def replace_between(page: Path, name: str, text: str) -> None:
    """Replace what stands in `page` between `<!-- name -->` and `<!-- /name -->`.

    Raises:
        ValueError: the page lacks a marker.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, found_begin, rest = page.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise ValueError(f"{page} needs the lines {begin} and {end}.")
    page.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}")
