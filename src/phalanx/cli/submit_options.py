"""The options that several kinds of `phalanx submit` have, each by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JobName = Annotated[
    str | None,
    typer.Option(help="The run's and the job's name.", show_default="the script and the time"),
]
SharedRunDir = Annotated[
    Path, typer.Option(help="The directory of all runs, which all nodes share.")
]
JobsDir = Annotated[Path, typer.Option(help="Where to note the job here, for phalanx status.")]
Grace = Annotated[int, typer.Option(metavar="SECONDS", help="How long training may save and stop.")]
RunOptionsText = Annotated[
    str, typer.Option(metavar="'...'", help="Further options of phalanx run.")
]
