"""Where a long measurement stands, on standard error."""

from __future__ import annotations

import sys


def report(text: str) -> None:
    """Show `text`: in one line that is redrawn on a terminal, else in lines. "" ends it."""
    if sys.stderr.isatty():
        print(f"\r{text:<60}", end="" if text else "\r", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)
