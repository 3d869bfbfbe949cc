"""`phalanx debug`: the status of workers, a trace, and the replay of a non-finite step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.console import info
from phalanx.cli.report import write_page
from phalanx.cli.run_options import Run, RunDir
from phalanx.launcher.script_check import check_script

STATUS_HELP = """Report where each worker of a run is or was, who waits for whom, and since when.

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


TRACE_HELP = """Write the last steps of all workers as one trace: open it in ui.perfetto.dev.

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


REPLAY_HELP = """Replay a step with a non-finite loss or gradient, and locate the cause.

RUN/captures holds the batch of the step and the weights before it. The replay runs eagerly, \
layer by layer, forward and backward. It names the first layer and operation, the variable, \
the samples and the cause. The exit code is 1 if everything is finite this time. RUN is the name \
of a run, or the path of its directory or of a captured step.

[bold]Examples[/bold]

  phalanx debug replay mnist

  phalanx debug replay mnist --step worker-1-step-120

  phalanx debug replay runs/mnist --script train.py --epochs 10
"""


def replay(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or path of a run.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="Arguments of --script.")
    ] = None,
    run_dir: RunDir = Path("runs"),
    step: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the captured step; the first if omitted.")
    ] = "",
    script: Annotated[
        Path | None,
        typer.Option(help="Script that makes the model; it runs up to its first fit."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Replay in a process of its own, and leave with its exit code."""
    if script is not None:
        check_script(script)
    quiet = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    target = [] if script is None else [str(script), *(arguments or [])]
    form = "json" if as_json else "text"
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "phalanx.diagnostics.debug.replay_main",
            str(_directory(run, run_dir)),
            step,
            form,
            *target,
        ],
        env={**os.environ, **quiet},
        check=False,
    )
    raise typer.Exit(done.returncode)


def _directory(requested: str, root: Path) -> Path:
    """The directory of a run by its name or path; a path may be that of a captured step."""
    from phalanx.report.run_lookup import find_run, is_run

    path = Path(requested)
    return path if path.is_dir() and not is_run(root / requested) else find_run(requested, root)


HELP = "Inspect a run: status of workers, trace, replay of a non-finite step."

app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode="rich")


@app.callback()
def debug() -> None:
    """What all commands share."""


# A line for each command: app.command("name", help=NAME_HELP)(name)
app.command("status", help=STATUS_HELP)(status)
app.command("trace", help=TRACE_HELP)(trace)
app.command("replay", help=REPLAY_HELP, context_settings={"ignore_unknown_options": True})(replay)
