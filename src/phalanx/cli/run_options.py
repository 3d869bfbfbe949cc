"""The options of `phalanx run`, and the argument `RUN`; other commands share some of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phalanx.cluster.detect import CLUSTER_NAMES
from phalanx.cluster.spec import LOG_LEVELS
from phalanx.cluster.strategies import COMMUNICATION_NAMES, STRATEGY_NAMES
from phalanx.launch.options import TEE_MODES

Target = Annotated[str, typer.Argument(metavar="SCRIPT", help="The script or module to run.")]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[ARGS]...", help="Arguments of the script.")
]
AsModule = Annotated[
    bool, typer.Option("-m", "--module", help="SCRIPT is the name of a module, as in python -m.")
]
Workers = Annotated[
    str | None,
    typer.Option(
        metavar="N|MIN:MAX",
        help="Number of workers; with MIN:MAX, continue with fewer if one is lost.",
        show_default="one for each GPU of this machine, else 1",
    ),
]
Strategy = Annotated[
    str,
    typer.Option(
        metavar="|".join(STRATEGY_NAMES),
        help="Distribution strategy.",
        autocompletion=lambda: list(STRATEGY_NAMES),
    ),
]
Communication = Annotated[
    str,
    typer.Option(
        metavar="|".join(COMMUNICATION_NAMES),
        help="Backend of the all-reduce; needs a --strategy other than auto.",
        autocompletion=lambda: list(COMMUNICATION_NAMES),
    ),
]
Servers = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Number of parameter servers.", show_default="1 under parameter-server"
    ),
]
Sharding = Annotated[
    str,
    typer.Option(
        metavar="min-size:BYTES|fixed-shards:N|none",
        help="How large variables are partitioned over parameter servers.",
    ),
]
DataWorkers = Annotated[
    int,
    typer.Option(
        metavar="N", help="Number of processes that read and map data for pipeline(service=True)."
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        metavar="[cpu:|gpu:|logical-gpu:]N",
        help="Devices of each worker; cpu:N creates N logical CPU devices.",
        show_default="an equal part of the devices",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(help="Number of CPU threads of each worker.", show_default="cores / workers"),
]
Seed = Annotated[
    int | None,
    typer.Option(help="Random seed of every worker.", show_default="random, recorded in run.json"),
]
MaxRestarts = Annotated[int, typer.Option(help="Maximum number of restarts after failures.")]
Name = Annotated[str | None, typer.Option(help="Name of the run.", show_default="the start time")]
Run = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="Name or path of a run.", show_default="the latest"),
]
RunDir = Annotated[Path, typer.Option(help="Directory that holds all runs.")]
Tee = Annotated[
    str,
    typer.Option(
        metavar="|".join(TEE_MODES),
        help="Workers whose output is shown; log files hold all output.",
        autocompletion=lambda: list(TEE_MODES),
    ),
]
Logging = Annotated[
    str,
    typer.Option(
        metavar="|".join(LOG_LEVELS),
        help="Log level; auto is info on the chief and warning on the others.",
        autocompletion=lambda: list(LOG_LEVELS),
    ),
]
Hosts = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,...",
        help="Addresses of the nodes; run the same command on each.",
        show_default="from --cluster",
    ),
]
NodeRank = Annotated[
    int | None,
    typer.Option(
        metavar="I",
        help="Index of this node in --hosts, from 0.",
        show_default="from its addresses",
    ),
]
Cluster = Annotated[
    str,
    typer.Option(
        metavar="|".join(CLUSTER_NAMES),
        help="Cluster environment to detect.",
        autocompletion=lambda: list(CLUSTER_NAMES),
    ),
]
RendezvousTimeout = Annotated[
    float,
    typer.Option(metavar="SECONDS", help="Time to wait for the launchers of the other nodes."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Resume the run of that --name, if it exists.")
]
HangTimeout = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", help="End the run if it makes no progress for this time; 0 disables it."
    ),
]
GracePeriod = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", help="Time for training to save and stop after SIGTERM or SIGUSR1."
    ),
]
Env = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Environment variable for the workers (repeatable)."),
]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="Run steps eagerly and compare the workers' collectives."),
]
DebugRank = Annotated[
    int,
    typer.Option(
        metavar="RANK", help="Worker whose breakpoint() uses this terminal, with --debug."
    ),
]
FastDevRun = Annotated[
    int | None,
    typer.Option(
        metavar="[N]",
        help="Train and validate on N batches (default 1) and keep no output.",
        show_default=False,
    ),
]
OverfitBatches = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Train and validate on the same first N batches in every epoch.",
        show_default="all",
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(metavar="STEP|FIRST:LAST", help="Steps to record with TensorFlow's profiler."),
]
ProfileRanks = Annotated[
    str | None,
    typer.Option(metavar="RANK,...", help="Workers to profile.", show_default="the chief"),
]
