"""The leading launcher: waits for the others, and starts workers on their hosts."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.errors import LaunchError
from phalanx.launch.options import STARTUP_TIMEOUT
from phalanx.launch.rendezvous.client import WaitReporter
from phalanx.launch.rendezvous.identity import CommandIdentity
from phalanx.launch.rendezvous.remote_node import RemoteNode
from phalanx.launch.rendezvous.server import RendezvousServer
from phalanx.launch.rendezvous.store import RendezvousInfo, rendezvous_path
from phalanx.launch.resources import Machine
from phalanx.launch.supervisor import Clock

_SKEW = 2.0
"""Seconds between two clocks that a person notices in logs; a message takes less."""


class Leader:
    """Leads the launchers of the other hosts while it is entered."""

    def __init__(
        self,
        places: ClusterEnvironment,
        root: Path,
        *,
        versions: Mapping[str, str],
        clock: Clock,
        announce: Callable[[str], None],
        rendezvous_timeout: float = STARTUP_TIMEOUT,
        identity: CommandIdentity | None = None,
    ) -> None:
        """Listen, and say where.

        Args:
            places: where the launchers are.
            root: the directory of all runs, which the hosts share.
            versions: of the packages here.
            clock: the time.
            announce: says something to the user.
            rendezvous_timeout: seconds to wait for the others, at the start and after one was lost.
            identity: of the command, which all launchers must share.

        Raises:
            LaunchError: it cannot listen, or cannot write where.
        """
        self.places = places
        self.address = places.hosts[0] or socket.gethostname()
        self._clock = clock
        self._announce = announce
        self._timeout = rendezvous_timeout
        self._has_ended = False
        self._told_refused: dict[int, str] = {}
        token = secrets.token_hex(16)
        self._path = rendezvous_path(root.absolute(), places)
        try:
            self.arrivals = RendezvousServer(
                places, key=bytes.fromhex(token), versions=versions, identity=identity
            )
            self.meeting = RendezvousInfo(host=self.address, port=self.arrivals.port, token=token)
            self.meeting.write(self._path)
        except OSError as error:
            raise LaunchError(
                f"Asked to lead {len(places.hosts)} hosts, but this launcher cannot listen for "
                f"the others, or write where it does to {self._path}: {error}. Is --run-dir a "
                "directory that all hosts share and may write to?"
            ) from error
        self.homes = [
            RemoteNode(index, arrivals=self.arrivals, wait_for=self.wait_for)
            for index in range(1, len(places.hosts))
        ]

    def __enter__(self) -> Leader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._has_ended:
            self.end(1, str(error) if error is not None else None)
        with suppress(OSError):
            self._path.unlink()
        self.arrivals.close()

    def gather(self) -> list[Machine]:
        """Wait for all the others; what each has, in order.

        Raises:
            LaunchError: some did not come in time; says which.
        """
        self.wait_for(range(1, len(self.places.hosts)))
        for index in range(1, len(self.places.hosts)):
            if abs(skew := self.arrivals.skew(index)) > _SKEW:
                self._announce(
                    f"the clock of {self.arrivals.address(index)} ({index}) is {abs(skew):.0f} s "
                    f"{'ahead of' if skew > 0 else 'behind'} this host's: times in logs and "
                    "records of the two do not agree; the run does not depend on it"
                )
        return [self.arrivals.machine(index) for index in range(1, len(self.places.hosts))]

    def wait_for(self, wanted: Sequence[int]) -> None:
        """Wait until the launchers at these places are there, and say for whom.

        Raises:
            LaunchError: some did not come in time.
        """
        waiting = WaitReporter(self._clock, self._announce, self._timeout)
        while missing := sorted(set(wanted) & set(self.arrivals.missing())):
            if waiting.is_over:
                it = "them" if len(missing) > 1 else "it"
                raise LaunchError(
                    f"Waited {self._timeout:.0f} s for {self._named(missing)}; found no sign of "
                    f"{it}: {self._hint(missing)}. --rendezvous-timeout waits longer."
                )
            self._tell_refused()
            waiting.tell(self._named(missing))
            self.arrivals.wait(0.2)

    def signals(self) -> list[tuple[int, int]]:
        """What reached the other launchers since the last look: their index, the signal."""
        for home in self.homes:
            home.look()
        found = [(home.index, number) for home in self.homes for number in home.signals]
        for home in self.homes:
            home.signals.clear()
        return found

    def end(self, code: int, report: str | None) -> None:
        """Tell all others that the run is over."""
        self._has_ended = True
        # A launcher of the next run may come as soon as its host knows that this one is over.
        self.arrivals.refuse_all()
        for home in self.homes:
            if (wire := self.arrivals.wire(home.index)) is not None:
                wire.send({"do": "end", "code": code, "report": report})

    def _tell_refused(self) -> None:
        """Say at once who was sent away: the wait for another launcher may be long."""
        refused = self.arrivals.refused()
        for index, why in refused.items():
            if self._told_refused.get(index) != why:
                who = f"the launcher with index {index}" if index >= 0 else "a launcher"
                self._announce(f"sent away {who}: {why}")
        self._told_refused = refused

    def _named(self, indices: Sequence[int]) -> str:
        hosts = ", ".join(
            f"{self.places.hosts[i] or 'a host without a name'} ({i})" for i in indices
        )
        return f"the launcher{'s' * (len(indices) != 1)} on {hosts}"

    def _hint(self, missing: Sequence[int]) -> str:
        refused = self.arrivals.refused()
        why = [f"host {index}: {refused[index]}" for index in missing if index in refused]
        return "; ".join(why) or (
            "start the same command on each of them, with the same --run-dir, a directory that "
            f"all share; they must reach {self.address} port {self.arrivals.port}"
        )
