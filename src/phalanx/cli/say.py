"""Words to the person at the terminal, on standard error: standard output is the script's."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text


def say(message: str) -> None:
    """A short note."""
    _print(Text("phalanx: ", style="bold cyan") + Text(message))


def say_error(message: str) -> None:
    """An error: its first line in red, the rest plain."""
    first, *rest = message.split("\n", 1)
    _print(Text(f"phalanx: {first}", style="bold red"))
    for lines in rest:
        _print(Text(lines))


def _print(text: Text) -> None:
    Console(stderr=True, highlight=False).print(text, soft_wrap=True)
