"""The leader's rendezvous server: followers connect at the start, and again after a loss."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from phalanx.cluster.authenticated_connection import AuthenticatedListener
from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.launcher.rendezvous.channel import Channel
from phalanx.launcher.rendezvous.identity import CommandIdentity
from phalanx.launcher.resources import Machine

_FIRST_MESSAGE = 10.0
"""Seconds within which a launcher must send its hello message."""


class RendezvousServer:
    """Accepts launchers in a thread; the newest connection of each node rank counts."""

    def __init__(
        self,
        node_group: ClusterEnvironment,
        *,
        key: bytes,
        versions: Mapping[str, str],
        identity: CommandIdentity | None = None,
        make_channel: Callable[[Connection[Any, Any]], Channel] = Channel,
    ) -> None:
        """Listen on a free port, on all addresses of this host.

        Args:
            node_group: where the launchers are; this one leads.
            key: the secret that a launcher must know.
            versions: of the packages on this host; all hosts must have the same.
            identity: of the command; all launchers must have the same.
            make_channel: makes a channel of a connection.

        Raises:
            OSError: there is no free port.
        """
        self._node_group = node_group
        self._versions = dict(versions)
        self._identity = identity or CommandIdentity()
        self._make_channel = make_channel
        self._there = threading.Condition()
        self._channels: dict[int, Channel] = {}
        self._machines: dict[int, Machine] = {}
        self._hosts: dict[int, str] = {}
        self._host_ids: dict[int, str] = {}
        self._who: dict[int, str] = {}
        self._skews: dict[int, float] = {}
        self._rejected: dict[int, str] = {}
        self._is_over = False
        self._key = key
        self._listener = AuthenticatedListener(("", 0), key=key, on_connection=self._handshake)

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return self._listener.port

    def channel(self, index: int) -> Channel | None:
        """The channel to the launcher of a node rank; None if it is not connected."""
        with self._there:
            channel = self._channels.get(index)
        return None if channel is None or channel.is_lost else channel

    def machine(self, index: int) -> Machine:
        """The resources that the launcher of a node rank has reported."""
        with self._there:
            return self._machines[index]

    def address(self, index: int) -> str:
        """The host of a node rank, as it reports it where the cluster environment does not."""
        with self._there:
            return self._node_group.hosts[index] or self._hosts.get(index, "")

    def host_id(self, index: int) -> str:
        """The host of a node rank, and its present start: equal for two launchers of one host."""
        with self._there:
            return self._host_ids[index]

    def skew(self, index: int) -> float:
        """Seconds that a node's wall clock is ahead of this host's, including the message's delay.

        No decision depends on it: people compare times in logs and records of several hosts.
        """
        with self._there:
            return self._skews.get(index, 0.0)

    def missing(self) -> list[int]:
        """The node ranks whose launchers are not connected."""
        return [i for i in range(1, len(self._node_group.hosts)) if self.channel(i) is None]

    def rejected(self) -> dict[int, str]:
        """Why launchers were rejected, by node rank."""
        with self._there:
            return dict(self._rejected)

    def wait(self, seconds: float) -> None:
        """Wait until a launcher connects, at most `seconds`."""
        with self._there:
            self._there.wait(seconds)

    def reject_all(self) -> None:
        """Reject every launcher for now: the run is over, and the next one has another leader."""
        self._is_over = True

    def close(self) -> None:
        """Stop listening and close all channels."""
        self._listener.close()
        for channel in self._channels.values():
            channel.close()

    def _handshake(self, connection: Connection[Any, Any]) -> None:
        channel = self._make_channel(connection)
        hello = channel.receive(_FIRST_MESSAGE) or {}
        arrived = time.time()
        index = hello.get("index")
        why = self._rejection(hello)
        if self._is_over:
            why = "its run is over"
            channel.send({"do": "rejected", "why": why, "for_now": True})
        elif why is None and (
            differ := self._identity.difference(self._key, hello.get("identity"))
        ):
            why = self._identity.describe(differ)
            # Without this host's description: the other launcher makes its own.
            channel.send({"do": "rejected", "why": "", "differ": differ, "for_now": False})
        elif why is None and self._is_taken(hello):
            why = f"there is a launcher with index {index} already"
            channel.send({"do": "rejected", "why": why, "for_now": True})
        else:
            channel.send(
                {"do": "rejected", "why": why, "for_now": False} if why else {"do": "welcome"}
            )
        with self._there:
            if why:
                self._rejected[index if isinstance(index, int) else -1] = why
            else:
                machine = hello["machine"]
                self._rejected.pop(int(hello["index"]), None)
                self._machines[hello["index"]] = Machine(
                    cores=machine["cores"], gpus=tuple(machine["gpus"])
                )
                self._hosts[hello["index"]] = str(hello["host"])
                self._host_ids[hello["index"]] = f"{hello['host']} {hello.get('boot')}"
                self._who[hello["index"]] = hello["who"]
                self._skews[hello["index"]] = float(hello.get("time", arrived)) - arrived
                self._channels[hello["index"]] = channel
            self._there.notify_all()

    def _is_taken(self, hello: Mapping[str, Any]) -> bool:
        """Whether another process has that node rank; one that lost its channel may reconnect."""
        index = hello["index"]
        return self.channel(index) is not None and self._who.get(index) != hello["who"]

    def _rejection(self, hello: Mapping[str, Any]) -> str | None:
        index, count = hello.get("index"), len(self._node_group.hosts)
        if not isinstance(index, int) or not 0 < index < count:
            return f"its index must be 1 to {count - 1}; found {index!r}"
        theirs = hello.get("versions", {})
        differ = [
            f"{name} {theirs.get(name)} there and {number} on the first host"
            for name, number in self._versions.items()
            if theirs.get(name) != number
        ]
        return f"versions differ: {', '.join(differ)}" if differ else None
