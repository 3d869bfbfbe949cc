"""A node, on which workers of the worker group are started: the leader's own, or a follower's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from phalanx.cluster.authenticated_connection import join_address
from phalanx.cluster.spec import WorkerSpec
from phalanx.errors import LaunchError
from phalanx.launcher.ports import PortPicker, pick_free_ports
from phalanx.launcher.prefork import PreforkPool
from phalanx.launcher.process import WorkerHandle
from phalanx.launcher.run_layout import AttemptPaths
from phalanx.launcher.worker_group import worker_environment
from phalanx.monitoring.durable_files import PRIVATE_DIR

GPUs = Sequence[str] | None
"""The GPUs that a worker sees, by number; None for all."""
pick_public_ports = partial(pick_free_ports, host="")
"""Picks ports that are free on all addresses, for nodes that others reach."""


class Node(Protocol):
    """Starts workers on one host."""

    @property
    def address(self) -> str:
        """A name or an address by which workers of all nodes reach those of this one."""

    @property
    def is_lost(self) -> bool:
        """Whether no worker can be started there now."""

    def pick_ports(self, count: int) -> list[int]:
        """`count` distinct ports that are free there now.

        Raises:
            LaunchError: the node is lost.
        """

    def start(self, spec: WorkerSpec, gpus: GPUs) -> WorkerHandle:
        """Start a worker.

        Raises:
            LaunchError: it did not start.
        """

    def prewarm(self, spec: WorkerSpec, gpus: GPUs) -> None:
        """Prepare a process for the next start; `spec` is one of the workers there."""

    def shutdown_pool(self) -> None:
        """End the prepared process."""


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

    @property
    def is_lost(self) -> bool:
        """See `Node`."""
        return False

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

    def prewarm(self, spec: WorkerSpec, gpus: GPUs) -> None:
        """See `Node`."""
        self.warm.prewarm(self.command, worker_environment(self.environment, spec, gpus))

    def shutdown_pool(self) -> None:
        """See `Node`."""
        self.warm.close()


def allocate_addresses(nodes: Sequence[Node], of_workers: Sequence[int]) -> tuple[str, ...]:
    """`host:port` for each worker (`[host]:port` for IPv6), with ports that are free now.

    Args:
        nodes: all nodes.
        of_workers: each worker's node, by rank.

    Raises:
        LaunchError: a node is lost; names all its workers.
    """
    ports: dict[int, Iterator[int]] = {}
    for node, count in Counter(of_workers).items():
        try:
            ports[node] = iter(nodes[node].pick_ports(count))
        except LaunchError as error:
            error.ranks = [rank for rank, its in enumerate(of_workers) if its == node]
            raise
    return tuple(join_address(nodes[node].address, next(ports[node])) for node in of_workers)
