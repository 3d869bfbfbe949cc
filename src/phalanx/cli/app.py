"""The command tree; each command lives in a file of its own."""

from __future__ import annotations

from typing import Annotated

import typer

import phalanx
from phalanx.cli.run import HELP as RUN_HELP
from phalanx.cli.run import run

app = typer.Typer(
    name="phalanx",
    help="Train Keras models on many devices and get the answer that one device would have got.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"phalanx {phalanx.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """What all commands share."""


# Options after the script are the script's own.
app.command("run", help=RUN_HELP, context_settings={"allow_interspersed_args": False})(run)
