"""`phalanx run`: a script on the workers of this machine."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.say import say, say_error
from phalanx.cluster.spec import STRATEGY_NAMES
from phalanx.launch.hardware import Machine
from phalanx.launch.options import TEE_MODES, RunOptions, parse_devices, parse_env
from phalanx.launch.run import Surroundings
from phalanx.launch.run import run as launch

HELP = """Run a Keras script on several workers, unchanged.

Options before the script are Phalanx's; all that follows it is the script's own.

[bold]Examples[/bold]

  phalanx run --workers 4 train.py --epochs 10

  phalanx run --workers 2 --tee all -m package.train

  phalanx run --strategy mirrored --devices-per-worker cpu:2 train.py
"""


def run(
    target: Annotated[str, typer.Argument(metavar="SCRIPT", help="The script (or module) to run.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="The script's own arguments.")
    ] = None,
    as_module: Annotated[
        bool, typer.Option("-m", "--module", help="SCRIPT is a module's name, as in python -m.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(help="How many workers.", show_default="one for each GPU here, else 1"),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="|".join(STRATEGY_NAMES),
            help="How they train together.",
            autocompletion=lambda: list(STRATEGY_NAMES),
        ),
    ] = "auto",
    devices_per_worker: Annotated[
        str | None,
        typer.Option(
            metavar="[cpu:|gpu:]N",
            help="Devices of each worker; cpu:N makes N logical CPU devices.",
            show_default="its share of what is there",
        ),
    ] = None,
    threads_per_worker: Annotated[
        int | None,
        typer.Option(help="CPU threads of each worker.", show_default="the cores shared out"),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="The seed of every worker.", show_default="drawn and written down"),
    ] = None,
    max_restarts: Annotated[int, typer.Option(help="Restarts after a failure. Only 0 so far.")] = 0,
    name: Annotated[
        str | None, typer.Option(help="The run's name.", show_default="the time")
    ] = None,
    run_dir: Annotated[Path, typer.Option(help="The directory of all runs.")] = Path("runs"),
    tee: Annotated[
        str,
        typer.Option(
            metavar="|".join(TEE_MODES),
            help="Whose output to show here; the log files have all of it.",
            autocompletion=lambda: list(TEE_MODES),
        ),
    ] = "chief",
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Add to the workers' environment (repeatable)."),
    ] = None,
) -> None:
    """Read the flags, launch, and leave with the run's exit code."""
    options = RunOptions(
        target=target,
        arguments=tuple(arguments or ()),
        as_module=as_module,
        workers=workers,
        strategy=strategy,  # type: ignore[arg-type]  # RunOptions checks it.
        devices=parse_devices(devices_per_worker) if devices_per_worker is not None else None,
        seed=seed,
        max_restarts=max_restarts,
        name=name,
        run_dir=run_dir,
        tee=tee,  # type: ignore[arg-type]
        threads=threads_per_worker,
        env=parse_env(env or []),
    )
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # A bar's "━" must not end a run.
    terminal = sys.stdout.isatty()
    result = launch(
        options,
        Surroundings(
            environment=os.environ,
            machine=Machine.here({**os.environ, **options.env}),
            output=sys.stdout,
            argv=sys.argv,
            terminal=terminal,
            announce=say,
        ),
    )
    if result.report is not None:
        say_error(result.report)
    raise typer.Exit(result.exit_code)
