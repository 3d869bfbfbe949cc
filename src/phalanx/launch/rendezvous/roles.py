"""The two roles of a launcher in a run on several nodes: leader and follower."""

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
    options: RunOptions, surroundings: LaunchContext, node_group: ClusterEnvironment
) -> Leader:
    """Start to lead the launchers of the other nodes.

    Raises:
        LaunchError: this launcher cannot listen for them.
    """
    return Leader(
        node_group,
        options.run_dir,
        versions=versions(),
        clock=MonotonicClock(longest_gap=_LONGEST_GAP),
        announce=surroundings.announce,
        rendezvous_timeout=options.rendezvous_timeout,
        identity=CommandIdentity.of(options),
    )


def run_follower(
    options: RunOptions, surroundings: LaunchContext, node_group: ClusterEnvironment
) -> RunResult:
    """Start workers for the leader, until the run is over.

    Raises:
        LaunchError: there is no leader, or it rejects this launcher.
    """
    command = surroundings.command(options.target, options.arguments, as_module=options.as_module)
    node = LocalNode(
        command=command,
        environment={**surroundings.environment, **options.env},
        address=node_group.hosts[node_group.index],
        picks=_ANY_ADDRESS,
    )
    with SignalCatcher((signal.SIGINT, signal.SIGHUP, *SIGNALS)) as signals:
        clock, announce = MonotonicClock(longest_gap=_LONGEST_GAP), surroundings.announce
        client = RendezvousClient(
            node_group,
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
            client, options.run_dir, node, signals=signals, clock=clock, announce=announce
        ).run()
    return RunResult(exit_code=ended.code, run_dir=options.run_dir, report=ended.report)


def nodes_of(
    plan: WorkerGroupSpec, surroundings: LaunchContext, leader: Leader | None
) -> list[Node]:
    """The nodes on which workers are started: the leader's own and those of all followers."""
    here = partial(LocalNode, command=plan.command, environment=plan.environment)
    if leader is None:
        return [here(picks=surroundings.pick_ports)]
    return [here(address=leader.address, picks=_ANY_ADDRESS), *leader.nodes]


def forward_signals(leader: Leader | None, signals: SignalCatcher) -> None:
    """Treat signals that reached followers as signals to this launcher."""
    for launcher, number in leader.signals() if leader is not None else ():
        signals.add(number, launcher)
