"""What a worker process knows about itself and its group: the process boundary, as values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from phalanx.cluster.debug_options import DebugOptions
from phalanx.cluster.reduce_options import ReduceOptions
from phalanx.cluster.strategies import StrategyName
from phalanx.cluster.sync_options import SyncOptions
from phalanx.cluster.task_types import DEFAULT_SHARDING, Role, task_of
from phalanx.errors import ClusterError

WORKER_VARIABLE = "PHALANX_WORKER_SPEC"
"""The one environment variable that the launcher adds to TF_CONFIG."""

LogLevel = Literal["auto", "debug", "info", "warning", "error"]
LOG_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
"""What a worker says through `logging`; auto is info on the chief and warning on the others."""


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """How many devices a worker uses, and of which kind.

    `kind` is "auto" (GPUs where there are any, else CPUs), "cpu", "gpu" or "logical-gpu".
    CPUs beyond the first are logical: TensorFlow splits the one physical CPU into `count`
    devices; likewise it splits one physical GPU into `count` of kind "logical-gpu".
    """

    count: int = 1
    kind: Literal["auto", "cpu", "gpu", "logical-gpu"] = "auto"


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """One worker's place in its worker group.

    Attributes:
        rank: this worker's index, 0 to `world_size` - 1; rank 0 is the chief.
        world_size: the number of workers in the worker group.
        addresses: `host:port` of every worker, by rank; may be empty when `world_size` is 1.
        strategy: the strategy asked for, "auto" not yet decided.
        communication_backend: how replicas add up, by name; "auto" leaves it to the strategy.
        reduction: in which pieces and in which dtype gradients travel.
        devices: the devices this worker uses; None lets the worker take what is there.
        threads: CPU threads for this worker; None leaves it to TensorFlow.
        seed: the seed for Python, NumPy, TensorFlow and Keras on every worker.
        run_dir: the run's directory, absolute.
        run_id: the id of the run's lease, the same in all its attempts; empty without a launcher.
        independent: whether the workers exchange nothing, so that each is alone.
        attempt: how often the worker group was started before this time.
        interactive: whether a person watches the launcher's terminal.
        servers: how many of the last ranks are parameter servers; rank 0 is then a chief that
            leads and does not compute, and the ranks between are the workers.
        sharding: how the servers share big variables; see `phalanx.cluster.task_types`.
        log_level: what the script's `logging` says; see `LOG_LEVELS`.
        data_service: `host:port` of the run's `tf.data` service; empty where it has none.
        switches: what is done so that mistakes are found.
        sync: how often workers synchronize their weights.
        sync_batchnorm: whether BatchNormalization has the mean and variance of the global batch.
        desync_address: `host:port` at which workers compare what they pass to a collective; empty
            where they do not.
        desync_key: what a process must know to take part there, in hexadecimal digits.
    """

    rank: int
    world_size: int
    addresses: tuple[str, ...] = ()
    strategy: StrategyName = "auto"
    communication_backend: str = "auto"
    reduction: ReduceOptions = field(default_factory=ReduceOptions)
    devices: DeviceSpec | None = None
    threads: int | None = None
    seed: int | None = None
    run_dir: str | None = None
    attempt: int = 0
    interactive: bool = False
    servers: int = 0
    sharding: str = DEFAULT_SHARDING
    data_service: str = ""
    log_level: LogLevel = "auto"
    switches: DebugOptions = field(default_factory=DebugOptions)
    sync: SyncOptions = field(default_factory=SyncOptions)
    sync_batchnorm: bool = True
    desync_address: str = ""
    desync_key: str = field(default="", repr=False)
    run_id: str = ""
    independent: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ClusterError(
                f"A worker's rank must be 0 to {self.world_size - 1} in a worker group of "
                f"{self.world_size}; found rank {self.rank}."
            )
        has_peers = self.world_size > 1 and not self.independent
        if has_peers and len(self.addresses) != self.world_size:
            raise ClusterError(
                f"A worker group of {self.world_size} workers needs {self.world_size} addresses; "
                f"found {len(self.addresses)}: {list(self.addresses)}."
            )

    @property
    def is_chief(self) -> bool:
        """Whether this worker is the one that writes files and speaks for the worker group."""
        return self.rank == 0

    @property
    def role(self) -> Role:
        """This worker's job in TF_CONFIG."""
        return task_of(self.rank, self.world_size, self.servers)[0]

    @property
    def task_index(self) -> int:
        """This worker's index within its job."""
        return task_of(self.rank, self.world_size, self.servers)[1]

    @property
    def serves(self) -> bool:
        """Whether it only does what a chief sends, and never runs the script."""
        return self.servers > 0 and not self.is_chief

    @property
    def shares_script(self) -> bool:
        """Whether other workers run the same lines of the same script, in step."""
        return self.world_size > 1 and not self.servers and not self.independent

    @property
    def has_terminal(self) -> bool:
        """Whether its `breakpoint()` has the launcher's terminal."""
        return self.switches.debug and self.rank == self.switches.debug_rank

    @property
    def cluster(self) -> dict[str, list[str]]:
        """The addresses of each job."""
        jobs: dict[str, list[str]] = {}
        for rank, address in enumerate(self.addresses):
            role, _ = task_of(rank, self.world_size, self.servers)
            jobs.setdefault(role, []).append(address)
        return jobs

    def to_environment(self) -> dict[str, str]:
        """The environment variables that hand this spec to a worker process."""
        environment = {WORKER_VARIABLE: json.dumps(asdict(self))}
        if self.addresses:
            task = {"type": self.role, "index": self.task_index}
            environment["TF_CONFIG"] = json.dumps({"cluster": self.cluster, "task": task})
        return environment

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> WorkerSpec:
        """The spec of which `asdict` gave these fields, through JSON."""
        devices = fields.get("devices")
        made = {
            "addresses": tuple(fields["addresses"]),
            "devices": None if devices is None else DeviceSpec(**devices),
            "reduction": ReduceOptions(**fields.get("reduction", {})),
            "switches": DebugOptions.from_fields(fields.get("switches", {})),
            "sync": SyncOptions(**fields.get("sync", {})),
        }
        return cls(**{**fields, **made})

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> WorkerSpec | None:
        """The spec that a launcher put into `environment`, or None when it put none.

        Raises:
            ClusterError: the variable is there but is not a worker's description.
        """
        text = environment.get(WORKER_VARIABLE)
        if text is None:
            return None
        try:
            return cls.from_fields(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ClusterError(
                f"{WORKER_VARIABLE} must hold what `phalanx run` wrote; found {text!r} "
                f"({error}). Unset it to run without the launcher."
            ) from error
