"""The two parts that a launcher can have in a run on several hosts."""

from __future__ import annotations

import signal
from functools import partial

from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.launch.context import LaunchContext
from phalanx.launch.options import RunOptions
from phalanx.launch.ports import pick_free_ports
from phalanx.launch.preemption import SIGNALS
from phalanx.launch.rendezvous.client import RendezvousClient
from phalanx.launch.rendezvous.follower import RendezvousFollower
from phalanx.launch.rendezvous.identity import CommandIdentity
from phalanx.launch.rendezvous.leader import Leader
from phalanx.launch.rendezvous.node import LocalNode, Node
from phalanx.launch.run_dir import versions
from phalanx.launch.run_result import RunResult
from phalanx.launch.signals import SignalCatcher
from phalanx.launch.supervisor import MonotonicClock
from phalanx.launch.worker_group import WorkerGroupSpec

_LONGEST_GAP = 60.0
"""Seconds. One try to reach the leader takes as long."""

_ANY_ADDRESS = partial(pick_free_ports, host="")


def run_leader(
    options: RunOptions, surroundings: LaunchContext, places: ClusterEnvironment
) -> Leader:
    """Begin to lead the launchers of the other places.

    Raises:
        LaunchError: this one cannot listen for them.
    """
    return Leader(
        places,
        options.run_dir,
        versions=versions(),
        clock=MonotonicClock(longest_gap=_LONGEST_GAP),
        announce=surroundings.announce,
        rendezvous_timeout=options.rendezvous_timeout,
        identity=CommandIdentity.of(options),
    )


def run_follower(
    options: RunOptions, surroundings: LaunchContext, places: ClusterEnvironment
) -> RunResult:
    """Start workers for the leader, until the run is over.

    Raises:
        LaunchError: there is no leader, or it sends this launcher away.
    """
    command = surroundings.command(options.target, options.arguments, as_module=options.as_module)
    home = LocalNode(
        command=command,
        environment={**surroundings.environment, **options.env},
        address=places.hosts[places.index],
        picks=_ANY_ADDRESS,
    )
    with SignalCatcher((signal.SIGINT, signal.SIGHUP, *SIGNALS)) as signals:
        clock, announce = MonotonicClock(longest_gap=_LONGEST_GAP), surroundings.announce
        joining = RendezvousClient(
            places,
            options.run_dir,
            machine=surroundings.machine,
            versions=versions(),
            signals=signals,
            clock=clock,
            announce=announce,
            rendezvous_timeout=options.rendezvous_timeout,
            identity=CommandIdentity.of(options),
        )
        ended = RendezvousFollower(
            joining, options.run_dir, home, signals=signals, clock=clock, announce=announce
        ).run()
    return RunResult(exit_code=ended.code, run_dir=options.run_dir, report=ended.report)


def nodes_of(
    plan: WorkerGroupSpec, surroundings: LaunchContext, leader: Leader | None
) -> list[Node]:
    """Where workers are started: here, and on every host that is led."""
    here = partial(LocalNode, command=plan.command, environment=plan.environment)
    if leader is None:
        return [here(picks=surroundings.pick_ports)]
    return [here(address=leader.address, picks=_ANY_ADDRESS), *leader.homes]


def forward_signals(leader: Leader | None, signals: SignalCatcher) -> None:
    """Take what reached other launchers for what reached this one."""
    for launcher, number in leader.signals() if leader is not None else ():
        signals.add(number, launcher)
