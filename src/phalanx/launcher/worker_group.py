"""From options to a worker group of worker processes on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import SIGKILL

from phalanx.cluster.debug_options import DebugOptions
from phalanx.cluster.reduce_options import ReduceOptions
from phalanx.cluster.spec import LogLevel, WorkerSpec
from phalanx.cluster.strategies import StrategyName, strategy_info
from phalanx.cluster.sync_options import SyncOptions
from phalanx.cluster.task_types import DEFAULT_SHARDING
from phalanx.errors import LaunchError
from phalanx.launcher.process import WorkerHandle
from phalanx.launcher.resources import ResourceAllocation
from phalanx.launcher.run_layout import AttemptPaths

WorkerCommand = Callable[..., tuple[str, ...]]
"""Gives a worker's command: `worker_command`, or a test's stand-in."""


@dataclass(frozen=True, kw_only=True)
class WorkerGroupSpec:
    """Everything about a worker group but its ports.

    Attributes:
        command: what each worker process runs.
        environment: the launcher's environment, with the user's additions.
        resources: what each worker gets of the machine, by rank.
        strategy: how the workers train together.
        seed: the seed of every worker.
        run_dir: the run's directory.
        interactive: whether a person watches the terminal.
        communication_backend: how replicas add up, by name.
        reduction: in which pieces and in which dtype gradients travel.
        log_level: what the workers' `logging` says.
        servers: how many of the last ranks are parameter servers.
        sharding: how those share big variables.
        data_addresses: `host:port` of the `tf.data` service's dispatcher, then of its workers;
            empty for no service.
        node_ranks: the rank of the node (`phalanx.launcher.rendezvous.node`) of each worker, by
            rank; empty for one node.
        switches: what is done so that mistakes are found.
        sync: how often workers synchronize their weights.
        sync_batchnorm: whether BatchNormalization has the mean and variance of the global batch.
        run_id: the id of the run's lease.
        independent: whether its workers exchange nothing.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    resources: Sequence[ResourceAllocation]
    strategy: StrategyName
    seed: int
    run_dir: Path
    interactive: bool = False
    communication_backend: str = "auto"
    reduction: ReduceOptions = field(default_factory=ReduceOptions)
    log_level: LogLevel = "auto"
    servers: int = 0
    sharding: str = DEFAULT_SHARDING
    data_addresses: Sequence[str] = ()
    node_ranks: Sequence[int] = ()
    switches: DebugOptions = field(default_factory=DebugOptions)
    sync: SyncOptions = field(default_factory=SyncOptions)
    sync_batchnorm: bool = True
    run_id: str = ""
    independent: bool = False

    def of(self, members: Sequence[int]) -> WorkerGroupSpec:
        """The plan of a worker group of some of these workers."""
        resources = [self.resources[member] for member in members]
        return replace(
            self, resources=resources, node_ranks=[self.node_of(member) for member in members]
        )

    def node_of(self, rank: int) -> int:
        """The rank of the node that a worker starts on."""
        return self.node_ranks[rank] if self.node_ranks else 0

    @property
    def is_networked(self) -> bool:
        """Whether its workers need addresses."""
        if self.independent:
            return False
        kind = strategy_info(self.strategy)
        return len(self.resources) > 1 or (kind is not None and kind.needs_addresses)

    @property
    def compares(self) -> bool:
        """Whether its workers compare what they pass to each collective."""
        return self.switches.debug and len(self.resources) > 1

    @property
    def data_service(self) -> str:
        """Where the `tf.data` service's dispatcher listens; "" where there is none."""
        return self.data_addresses[0] if self.data_addresses else ""

    def paths(self, attempt: int) -> AttemptPaths:
        """The files of one start of this worker group."""
        return AttemptPaths(run=self.run_dir, attempt=attempt)


def worker_command(target: str, arguments: Sequence[str], *, as_module: bool) -> tuple[str, ...]:
    """The command of a worker that runs the user's script.

    `-P` keeps the current directory out of the imports that come before the script's own.
    """
    start = (sys.executable, "-P", "-m", "phalanx.worker")
    return (*start, "-m" if as_module else "-f", target, *arguments)


def worker_specs(
    plan: WorkerGroupSpec,
    *,
    attempt: int,
    addresses: Sequence[str],
    desync_address: str = "",
    desync_key: str = "",
) -> list[WorkerSpec]:
    """Every worker's place."""
    return [
        WorkerSpec(
            rank=rank,
            world_size=len(plan.resources),
            addresses=tuple(addresses),
            strategy=plan.strategy,
            communication_backend=plan.communication_backend,
            reduction=plan.reduction,
            devices=allocation.devices,
            threads=allocation.threads,
            seed=plan.seed,
            run_dir=str(plan.run_dir),
            attempt=attempt,
            interactive=plan.interactive,
            log_level=plan.log_level,
            servers=plan.servers,
            sharding=plan.sharding,
            data_service=plan.data_service,
            switches=plan.switches,
            sync=plan.sync,
            sync_batchnorm=plan.sync_batchnorm,
            desync_address=desync_address,
            desync_key=desync_key,
            run_id=plan.run_id,
            independent=plan.independent,
        )
        for rank, allocation in enumerate(plan.resources)
    ]


def worker_environment(
    launchers: Mapping[str, str], spec: WorkerSpec, gpus: Sequence[str] | None
) -> dict[str, str]:
    """The environment of one worker: the launcher's, and what the worker group needs.

    Args:
        launchers: the launcher's, with the user's additions.
        spec: the worker.
        gpus: those that it may see; None changes nothing.
    """
    environment = dict(launchers)
    environment.pop("TF_CONFIG", None)  # One of the launcher's own would contradict the spec.
    environment["PYTHONUNBUFFERED"] = "1"
    environment.setdefault("PYTHONIOENCODING", "utf-8")  # What the launcher reads from the logs.
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    environment["KERAS_BACKEND"] = "tensorflow"  # A keras.json may name another.
    # Sets of strings must come in one order everywhere: vocabularies are built from them.
    environment.setdefault("PYTHONHASHSEED", str(spec.seed))
    if gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    environment.update(spec.to_environment())
    return environment


def start_worker_group(
    specs: Sequence[WorkerSpec], start: Callable[[WorkerSpec], WorkerHandle]
) -> dict[int, WorkerHandle]:
    """Start all workers, or none.

    Raises:
        LaunchError: one did not start; those that did were ended again.
    """
    handles: dict[int, WorkerHandle] = {}
    try:
        for spec in specs:
            handles[spec.rank] = start(spec)
    except BaseException as error:
        for handle in handles.values():
            with suppress(OSError):
                handle.signal(SIGKILL)
        if isinstance(error, LaunchError):
            error.ranks = (specs[len(handles)].rank,)
        raise
    return handles
