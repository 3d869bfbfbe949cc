"""`phalanx debug`: what went wrong in a run; a file for each command."""

from __future__ import annotations

import typer

from phalanx.cli.debug_replay import HELP as REPLAY_HELP
from phalanx.cli.debug_replay import replay
from phalanx.cli.debug_status import HELP as STATUS_HELP
from phalanx.cli.debug_status import status
from phalanx.cli.debug_trace import HELP as TRACE_HELP
from phalanx.cli.debug_trace import trace

HELP = "Inspect a run: status of workers, trace, replay of a non-finite step."

app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode="rich")


@app.callback()
def debug() -> None:
    """What all commands share."""


# A line for each command: app.command("name", help=NAME_HELP)(name)
app.command("status", help=STATUS_HELP)(status)
app.command("trace", help=TRACE_HELP)(trace)
app.command("replay", help=REPLAY_HELP, context_settings={"ignore_unknown_options": True})(replay)
