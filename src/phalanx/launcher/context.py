"""What a run touches outside itself, as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.launcher.ports import PortPicker, pick_free_ports
from phalanx.launcher.resources import Machine
from phalanx.launcher.showing import Showing
from phalanx.launcher.supervisor import Timeouts
from phalanx.launcher.worker_group import WorkerCommand, worker_command


@dataclass(frozen=True, kw_only=True)
class LaunchContext:
    """What a run touches outside itself, handed in so that tests can replace it.

    Attributes:
        environment: the launcher's.
        machine: what this host has.
        output: where the workers' lines are shown.
        argv: the launcher's command line.
        terminal: whether `output` is a terminal.
        pick_ports: finds free ports.
        command: gives a worker's command.
        timeouts: how long to wait for what.
        announce: says something to the user.
        node_group: where the launchers of the run are; None for one on this host.
    """

    environment: Mapping[str, str]
    machine: Machine
    output: Showing
    argv: Sequence[str] = ()
    terminal: bool = False
    pick_ports: PortPicker = pick_free_ports
    command: WorkerCommand = worker_command
    timeouts: Timeouts = field(default_factory=Timeouts)
    announce: Callable[[str], None] = lambda text: None
    node_group: ClusterEnvironment | None = None
