"""Reads the words of `phalanx run` without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import typer

from phalanx.cli.optional_value_option import OptionalValueCommand
from phalanx.cli.options_dataclass import takes
from phalanx.cli.run_options import RunCommand

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""What is raised for a word that is no option: click's, or that of the copy which typer has."""


def read_words(words: Sequence[str]) -> RunCommand | None:
    """The options and the script of `phalanx run`; None where the words ask for help, now printed.

    Raises:
        UsageError: a word is no option, or a value is of another type.
    """
    read = _reader()(list(words), prog_name="phalanx run", standalone_mode=False)
    return read if isinstance(read, RunCommand) else None


@cache
def _reader() -> Any:
    """A command that reads the words of `phalanx run`, and does no more."""
    reader = typer.Typer(add_completion=False)
    settings = {"allow_interspersed_args": False}
    as_read = takes(RunCommand)(lambda command: command)
    reader.command(cls=OptionalValueCommand, context_settings=settings)(as_read)
    return typer.main.get_command(reader)
