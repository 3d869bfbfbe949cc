"""`phalanx debug replay`: run a step again that was not finite, and say where it went wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.run_options import RunDir
from phalanx.launch.script_check import check_script

HELP = """Replay a step with a non-finite loss or gradient, and locate the cause.

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


def _directory(asked: str, root: Path) -> Path:
    """The directory of a run by its name or path; a path may be that of a captured step."""
    from phalanx.report.run_lookup import find_run, is_run

    path = Path(asked)
    return path if path.is_dir() and not is_run(root / asked) else find_run(asked, root)
