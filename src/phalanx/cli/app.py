"""The command tree; each command lives in a file of its own."""

from __future__ import annotations

from typing import Annotated

import typer

import phalanx
from phalanx.cli.check import HELP as CHECK_HELP
from phalanx.cli.check import check
from phalanx.cli.checkpoint import app as checkpoint
from phalanx.cli.data import app as data
from phalanx.cli.debug import app as debug
from phalanx.cli.doctor import HELP as DOCTOR_HELP
from phalanx.cli.doctor import doctor
from phalanx.cli.init import HELP as INIT_HELP
from phalanx.cli.init import init
from phalanx.cli.jobs import CANCEL_HELP, LOGS_HELP, STATUS_HELP, cancel, logs, status
from phalanx.cli.optional_value_option import OptionalValueCommand
from phalanx.cli.predict import EVALUATE_HELP, PREDICT_HELP, evaluate, predict
from phalanx.cli.report import HELP as REPORT_HELP
from phalanx.cli.report import report
from phalanx.cli.run import HELP as RUN_HELP
from phalanx.cli.run import run
from phalanx.cli.submit import app as submit
from phalanx.cli.watch import HELP as WATCH_HELP
from phalanx.cli.watch import watch

app = typer.Typer(
    name="phalanx",
    help="Train Keras models on many devices and get the result of one device.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(requested: bool) -> None:
    if requested:
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
app.command(
    "run",
    cls=OptionalValueCommand,
    help=RUN_HELP,
    context_settings={"allow_interspersed_args": False},
)(run)
app.command("predict", help=PREDICT_HELP)(predict)
app.command("evaluate", help=EVALUATE_HELP)(evaluate)
app.command("init", help=INIT_HELP)(init)
app.command("doctor", help=DOCTOR_HELP, context_settings={"allow_interspersed_args": False})(doctor)
app.command("check", help=CHECK_HELP)(check)
app.command("watch", help=WATCH_HELP)(watch)
app.command("report", help=REPORT_HELP)(report)
app.add_typer(checkpoint, name="checkpoint")
app.add_typer(data, name="data")
app.add_typer(debug, name="debug")
app.add_typer(submit, name="submit")
app.command("status", help=STATUS_HELP)(status)
app.command("logs", help=LOGS_HELP)(logs)
app.command("cancel", help=CANCEL_HELP)(cancel)
