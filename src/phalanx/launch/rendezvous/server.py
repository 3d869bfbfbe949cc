"""Where the leader listens for the launchers of the other hosts, now and after they were away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from phalanx.cluster.authenticated_connection import AuthenticatedListener
from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.launch.rendezvous.channel import Channel
from phalanx.launch.rendezvous.identity import CommandIdentity
from phalanx.launch.resources import Machine

_FIRST_MESSAGE = 10.0
"""Seconds that a launcher has to say who it is."""


class RendezvousServer:
    """Takes launchers in, in a thread of its own; the newest of each place counts."""

    def __init__(
        self,
        places: ClusterEnvironment,
        *,
        key: bytes,
        versions: Mapping[str, str],
        identity: CommandIdentity | None = None,
        make_wire: Callable[[Connection[Any, Any]], Channel] = Channel,
    ) -> None:
        """Listen, on a port that is free, on all of this host's addresses.

        Args:
            places: where the launchers are; this one leads.
            key: what a launcher must know.
            versions: of the packages here; all hosts must have the same.
            identity: of the command; all launchers must have the same.
            make_wire: makes a wire of a connection.

        Raises:
            OSError: there is no free port.
        """
        self._places = places
        self._versions = dict(versions)
        self._identity = identity or CommandIdentity()
        self._make_wire = make_wire
        self._there = threading.Condition()
        self._wires: dict[int, Channel] = {}
        self._machines: dict[int, Machine] = {}
        self._hosts: dict[int, str] = {}
        self._who: dict[int, str] = {}
        self._skews: dict[int, float] = {}
        self._refused: dict[int, str] = {}
        self._is_over = False
        self._key = key
        self._listener = AuthenticatedListener(("", 0), key=key, on_connection=self._greet)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._listener.port

    def wire(self, index: int) -> Channel | None:
        """The wire to the launcher at a place; None where none is there."""
        with self._there:
            wire = self._wires.get(index)
        return None if wire is None or wire.is_lost else wire

    def machine(self, index: int) -> Machine:
        """What the launcher at a place has said of its machine."""
        with self._there:
            return self._machines[index]

    def address(self, index: int) -> str:
        """The host of a place, by its own word where the cluster does not tell."""
        with self._there:
            return self._places.hosts[index] or self._hosts.get(index, "")

    def skew(self, index: int) -> float:
        """Seconds that the wall clock of a place is ahead of this host's, less the message's way.

        Nothing is decided by it: people compare times in logs and records of several hosts.
        """
        with self._there:
            return self._skews.get(index, 0.0)

    def missing(self) -> list[int]:
        """The places whose launchers are not there."""
        return [i for i in range(1, len(self._places.hosts)) if self.wire(i) is None]

    def refused(self) -> dict[int, str]:
        """Why launchers were sent away, by place."""
        with self._there:
            return dict(self._refused)

    def wait(self, seconds: float) -> None:
        """Wait until somebody comes, at most so long."""
        with self._there:
            self._there.wait(seconds)

    def refuse_all(self) -> None:
        """Send everybody away for now: the run is over, and the next one has another leader."""
        self._is_over = True

    def close(self) -> None:
        """Take nobody in any more, and hang up."""
        self._listener.close()
        for wire in self._wires.values():
            wire.close()

    def _greet(self, connection: Connection[Any, Any]) -> None:
        wire = self._make_wire(connection)
        hello = wire.take(_FIRST_MESSAGE) or {}
        arrived = time.time()
        index = hello.get("index")
        why = self._why_not(hello)
        if self._is_over:
            why = "its run is over"
            wire.send({"do": "refused", "why": why, "for_now": True})
        elif why is None and (
            differ := self._identity.difference(self._key, hello.get("identity"))
        ):
            why = self._identity.describe(differ)
            # Without the words of this host: the other launcher has its own.
            wire.send({"do": "refused", "why": "", "differ": differ, "for_now": False})
        elif why is None and self._is_taken(hello):
            why = f"there is a launcher with index {index} already"
            wire.send({"do": "refused", "why": why, "for_now": True})
        else:
            wire.send({"do": "refused", "why": why, "for_now": False} if why else {"do": "welcome"})
        with self._there:
            if why:
                self._refused[index if isinstance(index, int) else -1] = why
            else:
                machine = hello["machine"]
                self._refused.pop(int(hello["index"]), None)
                self._machines[hello["index"]] = Machine(
                    cores=machine["cores"], gpus=tuple(machine["gpus"])
                )
                self._hosts[hello["index"]] = str(hello["host"])
                self._who[hello["index"]] = hello["who"]
                self._skews[hello["index"]] = float(hello.get("time", arrived)) - arrived
                self._wires[hello["index"]] = wire
            self._there.notify_all()

    def _is_taken(self, hello: Mapping[str, Any]) -> bool:
        """Whether another process has that place; one that lost its wire may come back at once."""
        index = hello["index"]
        return self.wire(index) is not None and self._who.get(index) != hello["who"]

    def _why_not(self, hello: Mapping[str, Any]) -> str | None:
        index, count = hello.get("index"), len(self._places.hosts)
        if not isinstance(index, int) or not 0 < index < count:
            return f"its index must be 1 to {count - 1}; found {index!r}"
        theirs = hello.get("versions", {})
        differ = [
            f"{name} {theirs.get(name)} there and {number} on the first host"
            for name, number in self._versions.items()
            if theirs.get(name) != number
        ]
        return f"versions differ: {', '.join(differ)}" if differ else None
