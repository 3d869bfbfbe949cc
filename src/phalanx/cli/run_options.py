"""The options of `phalanx run`, each declared once, and what they come to.

Other commands share some of them, and read the words of `phalanx run` as it does itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cluster.debug_options import DebugOptions, parse_profile
from phalanx.cluster.detect import CLUSTER_NAMES
from phalanx.cluster.reduce_options import REDUCE_DTYPES, ReduceOptions
from phalanx.cluster.spec import LOG_LEVELS
from phalanx.cluster.strategies import COMMUNICATION_NAMES, STRATEGY_NAMES
from phalanx.cluster.sync_options import OUTER_OPTIMIZERS, SYNC_DTYPES, SyncOptions
from phalanx.cluster.task_types import DEFAULT_SHARDING
from phalanx.launcher.env_file import carried_env, collect_env
from phalanx.launcher.options import (
    GRACE,
    HANG_TIMEOUT,
    STARTUP_TIMEOUT,
    TEE_MODES,
    RunOptions,
    at_least,
    parse_devices,
    parse_workers,
)
from phalanx.launcher.shared_options import (
    Arguments,
    AsModule,
    Env,
    EnvFrom,
    MaxRestarts,
    Resume,
    Target,
    choice_option,
)
from phalanx.launcher.trackers import TRACKER_NAMES, parse_trackers

Run = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="Name or path of a run.", show_default="the latest"),
]
RunDir = Annotated[Path, typer.Option(help="Directory that holds all runs.")]
NodeRank = Annotated[
    int | None,
    typer.Option(
        metavar="I",
        help="Index of this node in --hosts, from 0.",
        show_default="from its addresses",
    ),
]

DevicesPerWorker = Annotated[
    str | None,
    typer.Option(
        metavar="[cpu:|gpu:|logical-gpu:]N",
        help="Devices of each worker; cpu:N creates N logical CPU devices.",
        show_default="one GPU if there is one; all under mirrored",
    ),
]
ThreadsPerWorker = Annotated[
    int | None,
    typer.Option(help="Number of CPU threads of each worker.", show_default="cores / workers"),
]
RunName = Annotated[
    str | None, typer.Option(help="Name of the run.", show_default="the start time")
]
TeeOption = Annotated[
    str,
    choice_option(TEE_MODES, help="Workers whose output is shown; log files hold all output."),
]
LogLevelOption = Annotated[
    str,
    choice_option(
        LOG_LEVELS, help="Log level; auto is info on the chief and warning on the others."
    ),
]
HangTimeout = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="End the run if it makes no progress for this time; 0 disables it.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class RunCommand:
    """What `phalanx run` is asked for, as it is written: each field is an option."""

    target: Target
    arguments: Arguments = None
    as_module: AsModule = False
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="N|MIN:MAX",
            help="Number of workers; with MIN:MAX, continue with fewer if one is lost.",
            show_default="one for each GPU of this machine, else 1",
        ),
    ] = None
    strategy: Annotated[
        str,
        choice_option(STRATEGY_NAMES, help="Distribution strategy."),
    ] = "auto"
    communication_backend: Annotated[
        str,
        choice_option(
            COMMUNICATION_NAMES,
            help="Backend of the all-reduce; needs a --strategy other than auto.",
        ),
    ] = "auto"
    bucket_mb: Annotated[
        float | None,
        typer.Option(
            metavar="MB",
            help="Size of the pieces in which gradients are added up; 0 is one piece.",
            show_default="by the size of the model",
        ),
    ] = None
    reduce_dtype: Annotated[
        str | None,
        choice_option(
            REDUCE_DTYPES,
            help="Dtype in which gradients travel between workers.",
            show_default="that of the gradient",
        ),
    ] = None
    sync_batchnorm: Annotated[
        bool,
        typer.Option(
            "--sync-batchnorm/--no-sync-batchnorm",
            help="BatchNormalization over the rows of all workers, or of each worker.",
        ),
    ] = True
    ps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of parameter servers.",
            show_default="1 under parameter-server",
        ),
    ] = None
    variable_partitioner: Annotated[
        str,
        typer.Option(
            metavar="min-size:BYTES|fixed-shards:N|none",
            help="How large variables are partitioned over parameter servers.",
        ),
    ] = DEFAULT_SHARDING
    sync_every: Annotated[
        int | None,
        typer.Option(
            metavar="H",
            help="Train each worker on its own and synchronize weights every H steps.",
            show_default="train in step",
        ),
    ] = None
    sync_warmup: Annotated[
        int,
        typer.Option(metavar="S", help="Train the first S steps in step before --sync-every."),
    ] = 0
    outer_optimizer: Annotated[
        str,
        choice_option(
            OUTER_OPTIMIZERS,
            help="What acts on the difference of the weights at a sync; none averages them.",
        ),
    ] = "nesterov"
    outer_learning_rate: Annotated[
        float, typer.Option(metavar="RATE", help="Learning rate of the outer optimizer.")
    ] = 0.7
    outer_momentum: Annotated[
        float, typer.Option(metavar="M", help="Momentum of the outer optimizer.")
    ] = 0.9
    sync_dtype: Annotated[
        str,
        choice_option(
            SYNC_DTYPES,
            help="Data type in which differences travel.",
            show_default="bfloat16 for nesterov, else float32",
        ),
    ] = "auto"
    sync_fragments: Annotated[
        int,
        typer.Option(metavar="P", help="Parts of the weights, which synchronize one by one."),
    ] = 1
    sync_delay: Annotated[
        int,
        typer.Option(
            metavar="T",
            help="Steps for which training continues while a sync travels; 0 waits for it.",
        ),
    ] = 0
    sync_mixing: Annotated[
        float,
        typer.Option(
            metavar="A", help="With --sync-delay, the share of its own weights a worker keeps."
        ),
    ] = 0.5
    data_workers: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Number of processes that read and map data for pipeline(service=True).",
        ),
    ] = 0
    devices_per_worker: DevicesPerWorker = None
    threads_per_worker: ThreadsPerWorker = None
    seed: Annotated[
        int | None,
        typer.Option(
            help="Random seed of every worker.", show_default="random, recorded in run.json"
        ),
    ] = None
    max_restarts: MaxRestarts = 0
    name: RunName = None
    run_dir: RunDir = Path("runs")
    tee: TeeOption = "chief"
    log_level: LogLevelOption = "auto"
    hosts: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Addresses of the nodes; run the same command on each.",
            show_default="from --cluster",
        ),
    ] = None
    node_rank: NodeRank = None
    cluster: Annotated[
        str,
        choice_option(CLUSTER_NAMES, help="Cluster environment to detect."),
    ] = "auto"
    rendezvous_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Time to wait for the launchers of the other nodes."),
    ] = STARTUP_TIMEOUT
    resume: Resume = False
    hang_timeout: HangTimeout = HANG_TIMEOUT
    grace_period: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="Time for training to save and stop after SIGTERM or SIGUSR1."
        ),
    ] = GRACE
    env: Env = None
    env_from: EnvFrom = None
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Run steps eagerly and compare the workers' collectives."),
    ] = False
    debug_rank: Annotated[
        int,
        typer.Option(
            metavar="RANK", help="Worker whose breakpoint() uses this terminal, with --debug."
        ),
    ] = 0
    fast_dev_run: Annotated[
        int | None,
        typer.Option(
            metavar="[N]",
            help="Train and validate on N batches (default 1) and keep no output.",
            show_default=False,
        ),
    ] = None
    overfit_batches: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Train and validate on the same first N batches in every epoch.",
            show_default="all",
        ),
    ] = None
    profile: Annotated[
        str | None,
        typer.Option(metavar="STEP|FIRST:LAST", help="Steps to record with TensorFlow's profiler."),
    ] = None
    profile_ranks: Annotated[
        str | None,
        typer.Option(metavar="RANK,...", help="Workers to profile.", show_default="the chief"),
    ] = None

    log_gradients: Annotated[
        bool,
        typer.Option(
            "--log-gradients", help="Log gradient norms, as a GradientLogger in the script would."
        ),
    ] = False
    tracker: Annotated[
        list[str] | None,
        choice_option(
            TRACKER_NAMES,
            help="Experiment tracker that gets the run (repeatable, or separated by commas).",
        ),
    ] = None
    tracker_project: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Project or experiment in the trackers.",
            show_default="the tracker's own",
        ),
    ] = None
    tracker_artifacts: Annotated[
        bool,
        typer.Option("--tracker-artifacts", help="Send the model file that was saved last, too."),
    ] = False

    @cached_property
    def options(self) -> RunOptions:
        """What each launcher is asked to do.

        Raises:
            ConfigurationError: an option, or two of them together, cannot work.
        """
        at_least("--fast-dev-run", self.fast_dev_run, 1)
        at_least("--overfit-batches", self.overfit_batches, 1)
        least, most = (None, None) if self.workers is None else parse_workers(self.workers)
        devices = self.devices_per_worker
        return RunOptions(
            target=self.target,
            arguments=tuple(self.arguments or ()),
            as_module=self.as_module,
            workers=most,
            min_workers=least,
            strategy=self.strategy,
            communication_backend=self.communication_backend,
            reduction=ReduceOptions(
                bucket_mb=self.bucket_mb,
                reduce_dtype=self.reduce_dtype,  # type: ignore[arg-type]
            ),
            servers=self.ps,
            sharding=self.variable_partitioner,
            data_workers=self.data_workers,
            devices=None if devices is None else parse_devices(devices),
            seed=self.seed,
            max_restarts=self.max_restarts,
            name=self.name,
            run_dir=self.run_dir,
            tee=self.tee,  # type: ignore[arg-type]
            log_level=self.log_level,  # type: ignore[arg-type]
            threads=self.threads_per_worker,
            hang_timeout=self.hang_timeout,
            grace_period=self.grace_period,
            rendezvous_timeout=self.rendezvous_timeout,
            resume=self.resume,
            switches=DebugOptions(
                debug=self.debug,
                debug_rank=self.debug_rank,
                trial_batches=self.fast_dev_run or 0,
                overfit_batches=self.overfit_batches or 0,
                profile=parse_profile(self.profile, self.profile_ranks),
                log_gradients=self.log_gradients,
            ),
            sync_batchnorm=self.sync_batchnorm,
            sync=SyncOptions(
                every=self.sync_every,
                warmup=self.sync_warmup,
                outer_optimizer=self.outer_optimizer,  # type: ignore[arg-type]
                outer_learning_rate=self.outer_learning_rate,
                outer_momentum=self.outer_momentum,
                dtype=self.sync_dtype,  # type: ignore[arg-type]
                fragments=self.sync_fragments,
                delay=self.sync_delay,
                mixing=self.sync_mixing,
            ),
            env=carried_env(os.environ) | collect_env(self.env, self.env_from),
            trackers=parse_trackers(self.tracker or ()),
            tracker_project=self.tracker_project,
            tracker_artifacts=self.tracker_artifacts,
        )
