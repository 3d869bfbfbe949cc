"""How a launcher finds the leader: by the file that it left, again and again until it answers."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict
from multiprocessing import AuthenticationError
from pathlib import Path

from phalanx.cluster.authenticated_connection import connect
from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.errors import LaunchError
from phalanx.launch.options import STARTUP_TIMEOUT
from phalanx.launch.rendezvous.channel import Channel
from phalanx.launch.rendezvous.identity import CommandIdentity
from phalanx.launch.rendezvous.store import RendezvousInfo, rendezvous_path
from phalanx.launch.resources import Machine
from phalanx.launch.signals import SignalCatcher
from phalanx.launch.supervisor import Clock

_WELCOME = 30.0

OnUnreachable = Callable[[RendezvousInfo, str], None]
"""Told where the leader should be, and how it could not be reached there."""


def _nothing(meeting: RendezvousInfo, why: str) -> None:
    pass


class RendezvousClient:
    """Joins the leader of one run, as often as it is lost.

    Attributes:
        leader: what its host is called.
    """

    def __init__(
        self,
        places: ClusterEnvironment,
        root: Path,
        *,
        machine: Machine,
        versions: Mapping[str, str],
        signals: SignalCatcher,
        clock: Clock,
        announce: Callable[[str], None],
        rendezvous_timeout: float = STARTUP_TIMEOUT,
        on_silence: OnUnreachable = _nothing,
        gives_up: Callable[[], bool] = bool,
        identity: CommandIdentity | None = None,
    ) -> None:
        """Prepare.

        Args:
            places: where the launchers are.
            root: the directory of all runs, which the hosts share.
            machine: what this host has.
            versions: of the packages here.
            signals: those that reached this launcher: one ends the search.
            clock: the time.
            announce: says something to the user.
            rendezvous_timeout: seconds to look for the leader.
            on_silence: told of each try that came to nothing.
            gives_up: whether to look no longer, asked after each try.
            identity: of the command, which the leader compares with its own.
        """
        self.leader = places.hosts[0] or "the first host"
        self._path = rendezvous_path(root.absolute(), places)
        self._hello = {
            "index": places.index,
            "machine": asdict(machine),
            "versions": versions,
            "host": socket.gethostname(),
            "who": uuid.uuid4().hex,
        }
        self._signals = signals
        self._clock = clock
        self._announce = announce
        self._timeout = rendezvous_timeout
        self._on_silence = on_silence
        self._gives_up = gives_up
        self._identity = identity or CommandIdentity()
        self._sent_away = ""

    def join(self) -> tuple[Channel, RendezvousInfo]:
        """The wire to the leader, and where it is.

        Raises:
            LaunchError: there is no leader, it refuses this launcher, or a signal came.
        """
        waiting = WaitReporter(self._clock, self._announce, self._timeout)
        while True:
            meeting = RendezvousInfo.read(self._path)
            wire = None if meeting is None else self._connect(meeting)
            if meeting is not None and wire is not None:
                return wire, meeting
            if waiting.is_over or self._signals.count() or self._gives_up():
                there = self._sent_away or ", but no launcher that knows this run"
                found = "no such file" if meeting is None else f"port {meeting.port}{there}"
                raise LaunchError(
                    f"Waited {waiting.seconds:.0f} s for the leading launcher on {self.leader}, "
                    f"which says where it is in {self._path}; found {found}. Start the same "
                    "command there, with the same --run-dir, a directory that all hosts share; "
                    "--rendezvous-timeout waits longer."
                )
            waiting.tell(f"the leading launcher on {self.leader}")
            self._clock.sleep(0.2)

    def _connect(self, meeting: RendezvousInfo) -> Channel | None:
        try:
            wire = Channel(connect((meeting.host, meeting.port), key=meeting.key))
        except (OSError, AuthenticationError) as error:
            self._on_silence(meeting, str(error) or type(error).__name__)
            return None
        hashes = self._identity.hashes(meeting.key)
        wire.send({**self._hello, "identity": hashes, "time": time.time()})
        answer = wire.take(_WELCOME)
        if answer is None:
            wire.close()
            self._on_silence(meeting, f"no answer within {_WELCOME:.0f} s")
            return None
        if answer["do"] == "welcome":
            return wire
        wire.close()
        if differ := answer.get("differ"):
            raise LaunchError(
                f"The leading launcher on {meeting.host} sends this one away: "
                f"{self._identity.describe(differ)}. Start the same command on all hosts."
            )
        self._sent_away = f", which sends this one away: {answer['why']}"
        if not answer["for_now"]:
            raise LaunchError(
                f"The leading launcher on {meeting.host} sends this one away: {answer['why']}."
            )
        return None


_REPORT_EVERY = 10.0
_AS_IF_TOLD = 9.0
"""Seconds before the wait: the first word comes after one second, as most come within it."""


class WaitReporter:
    """One wait, from now on."""

    def __init__(self, clock: Clock, announce: Callable[[str], None], timeout: float) -> None:
        """Begin to wait.

        Args:
            clock: the time.
            announce: says something to the user.
            timeout: seconds that it may take.
        """
        self._clock = clock
        self._announce = announce
        self._timeout = timeout
        self._began = clock.now()
        self._told = self._began - _AS_IF_TOLD

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return self._clock.now() - self._began

    @property
    def is_over(self) -> bool:
        """Whether it has taken too long."""
        return self.seconds > self._timeout

    def tell(self, whom: str) -> None:
        """Say for whom, unless that was said a moment ago."""
        now = self._clock.now()
        if now - self._told > _REPORT_EVERY:
            self._told = now
            self._announce(f"waiting for {whom}: {now - self._began:.0f} s so far")
