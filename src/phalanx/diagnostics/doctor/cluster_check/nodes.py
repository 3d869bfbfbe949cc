"""The nodes as the leader sees them: connects them, and sends requests to each."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from phalanx.diagnostics.doctor.cluster_check.follower import (
    ANSWER_TIMEOUT,
    NodeService,
    UnreachableMarker,
)
from phalanx.diagnostics.doctor.result import Result, failed, warning
from phalanx.launcher.rendezvous.channel import Channel
from phalanx.launcher.rendezvous.client import WaitReporter
from phalanx.launcher.rendezvous.leader import Leader
from phalanx.launcher.supervisor import Clock


class NodeClient(Protocol):
    """Sends requests to the `NodeService` of one node."""

    def ask(self, do: str, **fields: Any) -> Mapping[str, Any]:
        """Send a request; gives the answer, which has `error` if the request fails."""


class LocalNodeClient:
    """Of the leader's own node."""

    def __init__(self, service: NodeService) -> None:
        self._service = service

    def ask(self, do: str, **fields: Any) -> Mapping[str, Any]:
        """See `NodeClient`."""
        return self._service.answer({"do": do, **fields})


class RemoteNodeClient:
    """Of a follower's node; one request at a time."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = itertools.count()

    def ask(self, do: str, **fields: Any) -> Mapping[str, Any]:
        """See `NodeClient`."""
        number, end = next(self._numbers), time.monotonic() + ANSWER_TIMEOUT
        self._channel.send({"do": do, "ask": number, **fields})
        while time.monotonic() < end:
            answer = self._channel.receive(0.5)
            if answer is not None and answer.get("to") == number:
                return answer
            if answer is None and self._channel.is_lost:
                return {"error": "its connection to the first host broke"}
        return {"error": f"no answer within {ANSWER_TIMEOUT:.0f} s"}


_POLL = 0.2


@dataclass(kw_only=True)
class ConnectedNodes:
    """The nodes that answer, and those that do not reach the leader.

    Attributes:
        names: of all hosts, by node rank.
        others: the clients of the followers that are connected.
        markers: of the nodes that do not reach the leader.
    """

    names: list[str]
    others: dict[int, RemoteNodeClient] = field(default_factory=dict)
    markers: dict[int, UnreachableMarker] = field(default_factory=dict)

    def label(self, index: int) -> str:
        """The name of a node in messages."""
        return f"{self.names[index]} ({index})"


def connect_nodes(
    leader: Leader,
    directory: Path,
    *,
    clock: Clock,
    announce: Callable[[str], None],
    rendezvous_timeout: float,
) -> ConnectedNodes:
    """Wait until each node is connected or has written a marker, or until the timeout.

    Args:
        leader: the rendezvous leader.
        directory: contains the markers.
        clock: the time.
        announce: prints a message for the user.
        rendezvous_timeout: seconds to wait.
    """
    waiting = WaitReporter(clock, announce, rendezvous_timeout)
    markers: dict[int, UnreachableMarker] = {}
    while missing := [at for at in leader.server.missing() if at not in markers]:
        found = {at: UnreachableMarker.find(directory, leader.info, at) for at in missing}
        markers |= {at: marker for at, marker in found.items() if marker is not None}
        if waiting.is_over:
            break
        waited_for = ", ".join(f"{leader.server.address(at) or 'a host'} ({at})" for at in missing)
        waiting.report(f"the doctors on {waited_for}")
        leader.server.wait(_POLL)
    count = len(leader.node_group.hosts)
    channels = {at: leader.server.channel(at) for at in range(1, count)}
    others = {
        at: RemoteNodeClient(channel) for at, channel in channels.items() if channel is not None
    }
    own = {0: leader.address, **{at: marker.host for at, marker in markers.items()}}
    names = [leader.server.address(at) or own.get(at, f"host {at}") for at in range(count)]
    return ConnectedNodes(
        names=names,
        others=others,
        markers={at: marker for at, marker in markers.items() if at not in others},
    )


def missing(connected: ConnectedNodes, leader: Leader, began: float) -> Iterator[Result]:
    """Findings about nodes that are not connected.

    Args:
        connected: the nodes.
        leader: the rendezvous leader.
        began: when the wait began, by `time.monotonic`.
    """
    rejected = leader.server.rejected()
    for at in range(1, len(connected.names)):
        if at in connected.others:
            continue
        if at in connected.markers:
            what = "its results are unknown: its doctor does not reach the first host's"
            yield warning("host", f"{connected.label(at)}: {what}")
            continue
        why = rejected.get(at, f"no sign of it within {time.monotonic() - began:.0f} s")
        yield failed(
            "host",
            f"{connected.label(at)} is not there: {why}",
            f"on it: the same command with the same --run-dir, a directory that all share; ping "
            f"{connected.names[0]}; --rendezvous-timeout waits longer",
        )
