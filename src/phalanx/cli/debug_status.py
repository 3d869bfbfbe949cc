"""`phalanx debug status`: where each worker of a run is or was."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.run_options import Run, RunDir

HELP = """Report where each worker of a run is or was, who waits for whom, and since when.

Reads the flight recorder of each worker, for runs that continue, hang, failed or were killed. \
RUN is the name of a run or the path of its directory; the default is the latest run.

[bold]Examples[/bold]

  phalanx debug status

  phalanx debug status first --attempt 0

  phalanx debug status first --json
"""


def status(
    run: Run = None,
    run_dir: RunDir = Path("runs"),
    attempt: Annotated[
        int | None,
        typer.Option(min=0, metavar="K", help="Attempt of the run.", show_default="the last"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the status as JSON.")] = False,
) -> None:
    """Find the run, look once, and print what is to be said."""
    # numpy takes its time, which --help has no use for.
    from phalanx.report.run_lookup import find_run
    from phalanx.report.run_status import read_status

    found = read_status(find_run(run, run_dir), attempt=attempt, now=time.time())
    text = json.dumps(found.to_json(), indent=2) if as_json else "\n".join(found.lines)
    sys.stdout.write(text + "\n")
