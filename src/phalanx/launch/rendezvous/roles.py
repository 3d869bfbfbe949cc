"""The two parts that a launcher can have in a run on several hosts."""

from __future__ import annotations

import signal
from functools import partial

from phalanx.cluster.node_group import Places
from phalanx.launch.context import Surroundings
from phalanx.launch.options import RunOptions
from phalanx.launch.ports import pick_free_ports
from phalanx.launch.preemption import SIGNALS
from phalanx.launch.rendezvous.client import Joining
from phalanx.launch.rendezvous.follower import Follower
from phalanx.launch.rendezvous.leader import Leader
from phalanx.launch.rendezvous.node import Home, ThisHost
from phalanx.launch.run_dir import versions
from phalanx.launch.run_result import RunResult
from phalanx.launch.signals import SignalBox
from phalanx.launch.supervisor import WallClock
from phalanx.launch.worker_group import GangPlan

_ANY_ADDRESS = partial(pick_free_ports, host="")


def lead(options: RunOptions, surroundings: Surroundings, places: Places) -> Leader:
    """Begin to lead the launchers of the other places.

    Raises:
        LaunchError: this one cannot listen for them.
    """
    return Leader(
        places,
        options.run_dir,
        versions=versions(),
        clock=WallClock(),
        announce=surroundings.announce,
        startup_timeout=options.startup_timeout,
    )


def follow(options: RunOptions, surroundings: Surroundings, places: Places) -> RunResult:
    """Start workers for the leader, until the run is over.

    Raises:
        LaunchError: there is no leader, or it sends this launcher away.
    """
    command = surroundings.command(options.target, options.arguments, as_module=options.as_module)
    home = ThisHost(
        command=command,
        environment={**surroundings.environment, **options.env},
        address=places.hosts[places.index],
        picks=_ANY_ADDRESS,
    )
    with SignalBox((signal.SIGINT, signal.SIGHUP, *SIGNALS)) as signals:
        clock, announce = WallClock(), surroundings.announce
        joining = Joining(
            places,
            options.run_dir,
            machine=surroundings.machine,
            versions=versions(),
            signals=signals,
            clock=clock,
            announce=announce,
            startup_timeout=options.startup_timeout,
        )
        ended = Follower(
            joining, options.run_dir, home, signals=signals, clock=clock, announce=announce
        ).run()
    return RunResult(exit_code=ended.code, run_dir=options.run_dir, report=ended.report)


def homes_of(plan: GangPlan, surroundings: Surroundings, leader: Leader | None) -> list[Home]:
    """Where workers are started: here, and on every host that is led."""
    here = partial(ThisHost, command=plan.command, environment=plan.environment)
    if leader is None:
        return [here(picks=surroundings.pick_ports)]
    return [here(address=leader.address, picks=_ANY_ADDRESS), *leader.homes]


def hear(leader: Leader | None, signals: SignalBox) -> None:
    """Take what reached other launchers for what reached this one."""
    for launcher, number in leader.signals() if leader is not None else ():
        signals.add(number, launcher)
