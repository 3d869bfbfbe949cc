"""`phalanx run`: a script on the workers of this machine."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

import typer

from phalanx.cli.cluster_option import resolve_cluster
from phalanx.cli.console import error, info
from phalanx.cli.options_dataclass import takes
from phalanx.cli.run_options import RunCommand
from phalanx.launcher.context import LaunchContext
from phalanx.launcher.resources import Machine
from phalanx.launcher.run import run as launch
from phalanx.launcher.run_result import RunResult
from phalanx.launcher.showing import Showing

HELP = """Run a Keras script on several workers, unchanged.

Options before SCRIPT are options of Phalanx; arguments after it go to the script.

[bold]Examples[/bold]

  phalanx run --workers 4 train.py --epochs 10

  phalanx run --workers 2 --tee all -m package.train

  phalanx run --strategy mirrored --devices-per-worker cpu:2 train.py

  phalanx run --strategy parameter-server --workers 3 --ps 2 train.py

  phalanx run --hosts a,b,c train.py    # on each of a, b and c
"""


@takes(RunCommand)
def run(requested: RunCommand) -> None:
    """Launch, and leave with the run's exit code."""
    result = start(requested, sys.argv)
    if result.report is not None:
        error(result.report)
    raise typer.Exit(result.exit_code)


def start(requested: RunCommand, argv: Sequence[str], *, independent: bool = False) -> RunResult:
    """Run it with the standard output and the environment of this process.

    Args:
        requested: the options.
        argv: the command as the run records it; the arguments of the script are last.
        independent: whether the workers exchange nothing, so that one that fails is replaced alone.

    Raises:
        PhalanxError: an option, the script or a cluster environment cannot work.
    """
    options = replace(requested.options, independent=independent)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # A bar's "━" must not end a run.
    output = Showing(sys.stdout)
    return launch(
        options,
        LaunchContext(
            environment=os.environ,
            machine=Machine.here({**os.environ, **options.env}),
            output=output,
            argv=argv,
            terminal=output.isatty(),
            announce=info,
            node_group=resolve_cluster(requested.hosts, requested.node_rank, requested.cluster),
        ),
    )
