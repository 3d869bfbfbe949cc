"""Options that several kinds of `phalanx submit` share, as typer takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JobName = Annotated[
    str | None,
    typer.Option(help="Name of the run and of the job.", show_default="the script and the time"),
]
SharedRunDir = Annotated[
    Path, typer.Option(help="Directory that holds all runs, shared by all nodes.")
]
JobsDir = Annotated[
    Path, typer.Option(help="Local directory to record the job in, for phalanx status.")
]
GracePeriod = Annotated[
    int, typer.Option(metavar="SECONDS", help="Time for training to save and stop.")
]
RunOptionsText = Annotated[
    str, typer.Option(metavar="'...'", help="Further options of phalanx run.")
]
