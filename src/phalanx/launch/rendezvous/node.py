"""A host on which workers of a worker group are started: this one, or another that follows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from phalanx.cluster.spec import WorkerSpec
from phalanx.launch.ports import PortPicker, pick_free_ports
from phalanx.launch.prefork import PreforkPool
from phalanx.launch.process import WorkerHandle
from phalanx.launch.run_layout import AttemptPaths
from phalanx.launch.worker_group import worker_environment
from phalanx.monitoring.durable_files import PRIVATE_DIR

GPUs = Sequence[str] | None
"""The GPUs that a worker sees, by number; None for all."""


class Node(Protocol):
    """Where workers live."""

    @property
    def address(self) -> str:
        """A name or an address by which workers of all homes reach those of this one."""

    def pick_ports(self, count: int) -> list[int]:
        """So many distinct ports that are free there now."""

    def start(self, spec: WorkerSpec, gpus: GPUs) -> WorkerHandle:
        """Start a worker.

        Raises:
            LaunchError: it did not start.
        """

    def get_ready(self, spec: WorkerSpec, gpus: GPUs) -> None:
        """Have a process stand ready for the next start; `spec` is one of the workers there."""

    def cool(self) -> None:
        """End the process that stands ready."""


@dataclass(frozen=True, kw_only=True)
class LocalNode:
    """The host of this launcher.

    Attributes:
        command: what each worker runs.
        environment: the launcher's, with the user's additions.
        address: see `Node`.
        picks: finds free ports.
        warm: starts the workers.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    address: str = "127.0.0.1"
    picks: PortPicker = pick_free_ports
    warm: PreforkPool = field(default_factory=PreforkPool)

    def pick_ports(self, count: int) -> list[int]:
        """See `Node`."""
        return self.picks(count)

    def start(self, spec: WorkerSpec, gpus: GPUs) -> WorkerHandle:
        """See `Node`."""
        paths = AttemptPaths(run=Path(str(spec.run_dir)), attempt=spec.attempt)
        for path in (paths.run, paths.directory):
            path.mkdir(mode=PRIVATE_DIR, parents=True, exist_ok=True)
        environment = worker_environment(self.environment, spec, gpus)
        return self.warm.start(
            self.command,
            env=environment,
            log=paths.log(spec.rank),
            reads_terminal=spec.has_terminal,
        )

    def get_ready(self, spec: WorkerSpec, gpus: GPUs) -> None:
        """See `Node`."""
        self.warm.get_ready(self.command, worker_environment(self.environment, spec, gpus))

    def cool(self) -> None:
        """See `Node`."""
        self.warm.close()


def allocate_addresses(homes: Sequence[Node], of_workers: Sequence[int]) -> tuple[str, ...]:
    """`host:port` for each worker, with ports that are free now.

    Args:
        homes: all homes.
        of_workers: each worker's home, by rank.
    """
    ports = {home: iter(homes[home].pick_ports(n)) for home, n in Counter(of_workers).items()}
    return tuple(f"{homes[home].address}:{next(ports[home])}" for home in of_workers)
