"""The options of a benchmark that goes in rounds."""

from __future__ import annotations

import argparse
from pathlib import Path

from tables import add_json_option


def round_options(about: str | None, page: Path, *, rounds: int = 5) -> argparse.Namespace:
    """`--rounds`, `--json` and `--write`, from the command line.

    Args:
        about: what `--help` says first.
        page: what `--write` updates.
        rounds: how many, unless given otherwise.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=rounds)
    add_json_option(parser)
    parser.add_argument("--write", action="store_true", help=f"update docs/{page.name}")
    return parser.parse_args()
