"""The leader waits for the doctors of the other hosts: they come, or leave a sign, or neither."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.diagnostics.doctor.cluster_check.node_client import OtherHost
from phalanx.diagnostics.doctor.cluster_check.unreachable_marker import Sign
from phalanx.diagnostics.doctor.result import Result, failed, warning
from phalanx.launch.rendezvous.client import WaitReporter
from phalanx.launch.rendezvous.leader import Leader
from phalanx.launch.supervisor import Clock

_POLL = 0.2


@dataclass(kw_only=True)
class Gathered:
    """Who is there.

    Attributes:
        names: of all hosts, by index.
        others: those that can be asked.
        signs: of those that do not reach the leader.
    """

    names: list[str]
    others: dict[int, OtherHost] = field(default_factory=dict)
    signs: dict[int, Sign] = field(default_factory=dict)

    def called(self, index: int) -> str:
        """A host, for people."""
        return f"{self.names[index]} ({index})"


def gather(
    leader: Leader,
    directory: Path,
    *,
    clock: Clock,
    announce: Callable[[str], None],
    rendezvous_timeout: float,
) -> Gathered:
    """Wait until all have come or left a sign, or time is over.

    Args:
        leader: listens.
        directory: where signs are left.
        clock: the time.
        announce: says something to the user.
        rendezvous_timeout: seconds that it may take.
    """
    waiting = WaitReporter(clock, announce, rendezvous_timeout)
    signs: dict[int, Sign] = {}
    while missing := [at for at in leader.server.missing() if at not in signs]:
        found = {at: Sign.find(directory, leader.info, at) for at in missing}
        signs |= {at: sign for at, sign in found.items() if sign is not None}
        if waiting.is_over:
            break
        told = ", ".join(f"{leader.server.address(at) or 'a host'} ({at})" for at in missing)
        waiting.report(f"the doctors on {told}")
        leader.server.wait(_POLL)
    count = len(leader.node_group.hosts)
    channels = {at: leader.server.channel(at) for at in range(1, count)}
    others = {at: OtherHost(channel) for at, channel in channels.items() if channel is not None}
    own = {0: leader.address, **{at: sign.host for at, sign in signs.items()}}
    names = [leader.server.address(at) or own.get(at, f"host {at}") for at in range(count)]
    return Gathered(
        names=names,
        others=others,
        signs={at: sign for at, sign in signs.items() if at not in others},
    )


def missing(gathered: Gathered, leader: Leader, began: float) -> Iterator[Result]:
    """Hosts of which nothing is known, or not all.

    Args:
        gathered: who is there.
        leader: listens.
        began: when the wait began, by `time.monotonic`.
    """
    refused = leader.server.rejected()
    for at in range(1, len(gathered.names)):
        if at in gathered.others:
            continue
        if at in gathered.signs:
            what = "what was found on it is not known: its doctor does not reach the first host's"
            yield warning("host", f"{gathered.called(at)}: {what}")
            continue
        why = refused.get(at, f"no sign of it within {time.monotonic() - began:.0f} s")
        yield failed(
            "host",
            f"{gathered.called(at)} is not there: {why}",
            f"on it: the same command with the same --run-dir, a directory that all share; ping "
            f"{gathered.names[0]}; --rendezvous-timeout waits longer",
        )
