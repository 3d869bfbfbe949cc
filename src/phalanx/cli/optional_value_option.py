"""An option whose value may be left out, before a script that is no value.

click takes any word that follows such an option for its value:
https://click.palletsprojects.com/en/stable/options/#optional-value
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from typer.core import TyperCommand

OPTION, DEFAULT = "--fast-dev-run", "1"


class OptionalValueCommand(TyperCommand):
    """A command that writes out the number which `--fast-dev-run` stands for on its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of the command line."""
        flags = (p.opts for p in self.params if getattr(p, "is_flag", False))
        known = {"-h", "--help"}.union(*flags)
        return super().parse_args(ctx, written_out(args, known))


def written_out(words: Sequence[str], flags: Iterable[str]) -> list[str]:
    """`words` with the option's value, up to the script; what follows that is its own.

    Args:
        words: of the command line.
        flags: the options that take no value.
    """
    written: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        option = rest.pop(0)
        written.append(option)
        if option == OPTION and not (rest and rest[0].lstrip("-").isdecimal()):
            written.append(DEFAULT)
        elif rest and "=" not in option and option not in flags:
            written.append(rest.pop(0))
    return written + rest
