"""Words to the person at the terminal, on standard error: standard output is the script's."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import IO, TextIO, cast

from rich.console import Console
from rich.text import Text

from phalanx.launcher.showing import Showing


def info(message: str) -> None:
    """A short note."""
    _print(Text("phalanx: ", style="bold cyan") + Text(message))


def error(message: str) -> None:
    """An error: its first line in red, the rest plain."""
    first, *rest = message.split("\n", 1)
    _print(Text(f"phalanx: {first}", style="bold red"))
    for lines in rest:
        _print(Text(lines))


def _print(text: Text) -> None:
    # Not the Console's own standard error: where that is closed, it ends the process.
    stream = cast(IO[str], _showing(sys.stderr))
    Console(file=stream, highlight=False).print(text, soft_wrap=True)


@lru_cache(maxsize=1)  # Messages to a reader that has paused keep their order.
def _showing(stream: TextIO | None) -> Showing:
    return Showing(stream)
