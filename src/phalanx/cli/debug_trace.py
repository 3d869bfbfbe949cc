"""`phalanx debug trace`: what all workers did last, as a trace for Perfetto."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.console import info
from phalanx.cli.report import write_page
from phalanx.cli.run_options import Run, RunDir

HELP = """Write the last steps of all workers as one trace: open it in ui.perfetto.dev.

chrome://tracing opens it too. The trace has a process for each worker, with its phases, its \
steps and the host's collectives. RUN is the name of a run or the path of its directory; the \
default is the latest run.

[bold]Examples[/bold]

  phalanx debug trace

  phalanx debug trace first --attempt 0 --output first.json
"""


def trace(
    run: Run = None,
    run_dir: RunDir = Path("runs"),
    attempt: Annotated[
        int | None,
        typer.Option(min=0, metavar="K", help="Attempt of the run.", show_default="all"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File to write.",
            show_default="trace.json in the run's directory",
        ),
    ] = None,
) -> None:
    """Find the run, merge its flight recorders, and write them."""
    from phalanx.report.perfetto import trace_of
    from phalanx.report.run_lookup import find_run

    path = find_run(run, run_dir)
    file = output or path / "trace.json"
    write_page(file, json.dumps(trace_of(path, attempt), separators=(",", ":")))
    info(f"wrote {file}")
