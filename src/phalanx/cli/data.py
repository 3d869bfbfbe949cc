"""`phalanx data`: how fast a script's input is, and how it will be shared out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from phalanx.errors import ConfigurationError
from phalanx.launcher.script_check import check_script
from phalanx.launcher.shared_options import Arguments

app = typer.Typer(help="Inspect the input pipeline of a script.", no_args_is_help=True)

Script = Annotated[
    str,
    typer.Argument(
        metavar="SCRIPT|MODULE:FUNCTION", help="Script or function that makes the dataset."
    ),
]

BENCH_HELP = """Measure the input stage by stage, against what the training step consumes.

The script is run up to its first fit. With MODULE:FUNCTION its dataset is measured alone.

[bold]Examples[/bold]

  phalanx data bench train.py --epochs 10

  phalanx data bench package.data:train_dataset
"""

INSPECT_HELP = """Say how fit will share out a script's dataset, what it costs, and its traps.

The script is run up to its first fit. Nothing is read of the dataset.

[bold]Example[/bold]

  phalanx data inspect --workers 4 train.py
"""

_OWN_OPTIONS = {"allow_interspersed_args": False}  # Options after the script are its own.


@app.command("bench", help=BENCH_HELP, context_settings=_OWN_OPTIONS)
def bench(
    script: Script,
    arguments: Arguments = None,
    seconds: Annotated[float, typer.Option(help="Time to measure each stage, in seconds.")] = 1.0,
) -> None:
    """Measure in a process of its own, and leave with its exit code."""
    if not seconds > 0:
        raise ConfigurationError(f"--seconds must be more than 0; found {seconds}.")
    _run_probe("bench", str(seconds), script, arguments or [])


@app.command("inspect", help=INSPECT_HELP, context_settings=_OWN_OPTIONS)
def inspect(
    script: Script,
    arguments: Arguments = None,
    workers: Annotated[int, typer.Option(metavar="N", help="Number of workers to check for.")] = 2,
) -> None:
    """Look in a process of its own, and leave with its exit code: 1 where something is wrong."""
    if workers < 1:
        raise ConfigurationError(f"--workers must be at least 1; found {workers}.")
    _run_probe("inspect", str(workers), script, arguments or [])


def _run_probe(command: str, number: str, script: str, arguments: list[str]) -> None:
    is_function = ":" in script and not Path(script).exists()
    if not is_function:
        check_script(Path(script))
    quiet = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    target = ["-c" if is_function else "-f", script, *arguments]
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "phalanx.diagnostics.doctor.input_bottleneck",
            command,
            number,
            *target,
        ],
        env={**os.environ, **quiet},
        check=False,
    )
    raise typer.Exit(done.returncode)
