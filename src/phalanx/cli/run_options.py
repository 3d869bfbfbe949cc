"""The options of `phalanx run`, each by its name, and `RUN`; other commands have some of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phalanx.cluster.detect import CLUSTER_NAMES
from phalanx.cluster.spec import LOG_LEVELS
from phalanx.cluster.strategies import COMMUNICATION_NAMES, STRATEGY_NAMES
from phalanx.launch.options import TEE_MODES

Target = Annotated[str, typer.Argument(metavar="SCRIPT", help="The script (or module) to run.")]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[ARGS]...", help="The script's own arguments.")
]
AsModule = Annotated[
    bool, typer.Option("-m", "--module", help="SCRIPT is a module's name, as in python -m.")
]
Workers = Annotated[
    str | None,
    typer.Option(
        metavar="N|MIN:MAX",
        help="How many workers; with MIN:MAX, go on with fewer where one cannot come back.",
        show_default="one for each GPU here, else 1",
    ),
]
Strategy = Annotated[
    str,
    typer.Option(
        metavar="|".join(STRATEGY_NAMES),
        help="How they train together.",
        autocompletion=lambda: list(STRATEGY_NAMES),
    ),
]
Communication = Annotated[
    str,
    typer.Option(
        metavar="|".join(COMMUNICATION_NAMES),
        help="How the replicas of a named strategy add up.",
        autocompletion=lambda: list(COMMUNICATION_NAMES),
    ),
]
Servers = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="How many parameter servers.", show_default="one, if there are any"
    ),
]
Sharding = Annotated[
    str,
    typer.Option(
        metavar="min-size:BYTES|fixed-shards:N|none",
        help="How parameter servers share big variables.",
    ),
]
DataWorkers = Annotated[
    int,
    typer.Option(metavar="N", help="Processes that read and map data for pipeline(service=True)."),
]
Devices = Annotated[
    str | None,
    typer.Option(
        metavar="[cpu:|gpu:|logical-gpu:]N",
        help="Devices of each worker; cpu:N makes N logical CPU devices.",
        show_default="its share of what is there",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(help="CPU threads of each worker.", show_default="the cores shared out"),
]
Seed = Annotated[
    int | None,
    typer.Option(help="The seed of every worker.", show_default="drawn and written down"),
]
MaxRestarts = Annotated[int, typer.Option(help="Restarts after a failure.")]
Name = Annotated[str | None, typer.Option(help="The run's name.", show_default="the time")]
Run = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="A run, by name or by path.", show_default="the newest"),
]
RunDir = Annotated[Path, typer.Option(help="The directory of all runs.")]
Tee = Annotated[
    str,
    typer.Option(
        metavar="|".join(TEE_MODES),
        help="Whose output to show here; the log files have all of it.",
        autocompletion=lambda: list(TEE_MODES),
    ),
]
Logging = Annotated[
    str,
    typer.Option(
        metavar="|".join(LOG_LEVELS),
        help="What logging says; auto is info on the chief, warning on the others.",
        autocompletion=lambda: list(LOG_LEVELS),
    ),
]
Hosts = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,...",
        help="The hosts of the run; give the same command on each.",
        show_default="what the cluster's variables say",
    ),
]
HostIndex = Annotated[
    int | None,
    typer.Option(
        metavar="I", help="Which of them this is, from 0.", show_default="by its addresses"
    ),
]
Cluster = Annotated[
    str,
    typer.Option(
        metavar="|".join(CLUSTER_NAMES),
        help="Whose variables tell of other hosts.",
        autocompletion=lambda: list(CLUSTER_NAMES),
    ),
]
StartupTimeout = Annotated[
    float,
    typer.Option(metavar="SECONDS", help="How long to wait for the other hosts' launchers."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the run of that --name, if there is one.")
]
HangTimeout = Annotated[
    float,
    typer.Option(metavar="SECONDS", help="End a run that stands still for so long; 0 never does."),
]
Grace = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", help="How long training may save and stop after SIGTERM or SIGUSR1."
    ),
]
Env = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Add to the workers' environment (repeatable)."),
]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="Run steps eagerly; compare what workers bring to collectives."),
]
DebugRank = Annotated[
    int, typer.Option(metavar="RANK", help="Whose breakpoint() has this terminal, under --debug.")
]
FastDevRun = Annotated[
    int | None,
    typer.Option(
        metavar="[N]",
        help="N batches of training and of validation (1 if not given); nothing is kept.",
        show_default=False,
    ),
]
OverfitBatches = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Train and validate on the first N batches alone, the same in each epoch.",
        show_default="all",
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(metavar="STEP|FIRST:LAST", help="Look at these steps with TensorFlow's profiler."),
]
ProfileWorkers = Annotated[
    str | None,
    typer.Option(metavar="RANK,...", help="On which workers.", show_default="the chief"),
]
