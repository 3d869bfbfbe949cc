"""What a worker process knows about itself and its gang: the process boundary, as values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from phalanx.errors import ClusterError

WORKER_VARIABLE = "PHALANX_WORKER"
"""The one environment variable that the launcher adds to TF_CONFIG."""

StrategyName = Literal["auto", "single", "mirrored", "multiworker"]
STRATEGY_NAMES: tuple[StrategyName, ...] = ("auto", "single", "mirrored", "multiworker")


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """How many devices a worker uses, and of which kind.

    `kind` is "auto" (GPUs where there are any, else CPUs), "cpu" or "gpu". CPUs beyond
    the first are logical: TensorFlow splits the one physical CPU into `count` devices.
    """

    count: int = 1
    kind: Literal["auto", "cpu", "gpu"] = "auto"


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """One worker's place in its gang.

    Attributes:
        rank: this worker's index, 0 to `world_size` - 1; rank 0 is the chief.
        world_size: the number of workers in the gang.
        addresses: `host:port` of every worker, by rank; may be empty when `world_size` is 1.
        strategy: the strategy asked for, "auto" not yet decided.
        devices: the devices this worker uses; None lets the worker take what is there.
        threads: CPU threads for this worker; None leaves it to TensorFlow.
        seed: the seed for Python, NumPy, TensorFlow and Keras on every worker.
        run_dir: the run's directory, absolute.
        attempt: how often the gang was started before this time.
        interactive: whether a person watches the launcher's terminal.
    """

    rank: int
    world_size: int
    addresses: tuple[str, ...] = ()
    strategy: StrategyName = "auto"
    devices: DeviceSpec | None = None
    threads: int | None = None
    seed: int | None = None
    run_dir: str | None = None
    attempt: int = 0
    interactive: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ClusterError(
                f"A worker's rank must be 0 to {self.world_size - 1} in a gang of "
                f"{self.world_size}; found rank {self.rank}."
            )
        if self.world_size > 1 and len(self.addresses) != self.world_size:
            raise ClusterError(
                f"A gang of {self.world_size} workers needs {self.world_size} addresses; "
                f"found {len(self.addresses)}: {list(self.addresses)}."
            )

    @property
    def is_chief(self) -> bool:
        """Whether this worker is the one that writes files and speaks for the gang."""
        return self.rank == 0

    def to_environment(self) -> dict[str, str]:
        """The environment variables that hand this spec to a worker process."""
        environment = {WORKER_VARIABLE: json.dumps(asdict(self))}
        if self.addresses:
            environment["TF_CONFIG"] = json.dumps(
                {
                    "cluster": {"worker": list(self.addresses)},
                    "task": {"type": "worker", "index": self.rank},
                }
            )
        return environment

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
            fields = json.loads(text)
            if fields.get("devices") is not None:
                fields["devices"] = DeviceSpec(**fields["devices"])
            return cls(**{**fields, "addresses": tuple(fields["addresses"])})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ClusterError(
                f"{WORKER_VARIABLE} must hold what `phalanx run` wrote; found {text!r} "
                f"({error}). Unset it to run without the launcher."
            ) from error
