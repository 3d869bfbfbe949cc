"""A launcher connects to the leader: reads its rendezvous file and retries until it answers."""

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
from phalanx.errors import LaunchError, UnavailableError
from phalanx.launcher.failure import boot_id
from phalanx.launcher.options import STARTUP_TIMEOUT
from phalanx.launcher.rendezvous.channel import Channel
from phalanx.launcher.rendezvous.identity import CommandIdentity
from phalanx.launcher.rendezvous.store import RendezvousInfo, rendezvous_path
from phalanx.launcher.resources import Machine
from phalanx.launcher.signals import SignalCatcher
from phalanx.launcher.supervisor import Clock

_WELCOME = 30.0
LONGEST_GAP = 60.0
"""Seconds that one try to reach the leader may take, for the launcher's clock."""

OnUnreachable = Callable[[RendezvousInfo, str], None]
"""Called with the leader's address and the reason why it could not be reached there."""


def _nothing(info: RendezvousInfo, why: str) -> None:
    pass


class RendezvousClient:
    """Connects to the leader of one run, and again after each loss.

    Attributes:
        leader: the host name or address of the leader.
    """

    def __init__(
        self,
        node_group: ClusterEnvironment,
        root: Path,
        *,
        machine: Machine,
        versions: Mapping[str, str],
        signals: SignalCatcher,
        clock: Clock,
        announce: Callable[[str], None],
        rendezvous_timeout: float = STARTUP_TIMEOUT,
        on_unreachable: OnUnreachable = _nothing,
        gives_up: Callable[[], bool] = bool,
        identity: CommandIdentity | None = None,
        name: str | None = None,
    ) -> None:
        """Prepare.

        Args:
            node_group: where the launchers are.
            root: the directory of all runs, which the hosts share.
            machine: the resources of this host.
            versions: of the packages on this host.
            signals: those that reached this launcher: one ends the search.
            clock: the time.
            announce: says something to the user.
            rendezvous_timeout: seconds to look for the leader.
            on_unreachable: called after each try that fails.
            gives_up: whether to stop retrying; called after each try.
            identity: of the command, which the leader compares with its own.
            name: the run's, if the command names it.
        """
        self.leader = node_group.hosts[0] or "the first host"
        self._path = rendezvous_path(root.absolute(), node_group, name)
        self._hello = {
            "index": node_group.index,
            "machine": asdict(machine),
            "versions": versions,
            "host": socket.gethostname(),
            "boot": boot_id(),
            "who": uuid.uuid4().hex,
        }
        self._signals = signals
        self._clock = clock
        self._announce = announce
        self._timeout = rendezvous_timeout
        self._on_unreachable = on_unreachable
        self._gives_up = gives_up
        self._identity = identity or CommandIdentity()
        self._rejection = ""

    def join(self) -> tuple[Channel, RendezvousInfo]:
        """Connect to the leader; gives the channel and the leader's rendezvous file.

        Raises:
            UnavailableError: there is no leader, or a signal came.
            LaunchError: the leader rejects this launcher.
        """
        waiting = WaitReporter(self._clock, self._announce, self._timeout)
        while True:
            info = RendezvousInfo.read(self._path)
            channel = None if info is None else self._connect(info)
            if info is not None and channel is not None:
                return channel, info
            if waiting.is_over or self._signals.count() or self._gives_up():
                there = self._rejection or ", but no launcher that knows this run"
                found = "no such file" if info is None else f"port {info.port}{there}"
                raise UnavailableError(
                    f"Waited {waiting.seconds:.0f} s for the leading launcher on {self.leader}, "
                    f"which says where it is in {self._path}; found {found}. Start the same "
                    "command there, with the same --name and --run-dir, a directory that all hosts "
                    "share; --rendezvous-timeout waits longer."
                )
            waiting.report(f"the leading launcher on {self.leader}")
            self._clock.sleep(0.2)

    def _connect(self, info: RendezvousInfo) -> Channel | None:
        try:
            channel = Channel(connect((info.host, info.port), key=info.key))
        except (OSError, AuthenticationError) as error:
            self._on_unreachable(info, str(error) or type(error).__name__)
            return None
        hashes = self._identity.hashes(info.key)
        channel.send({**self._hello, "identity": hashes, "time": time.time()})
        answer = channel.receive(_WELCOME)
        if answer is None:
            channel.close()
            self._on_unreachable(info, f"no answer within {_WELCOME:.0f} s")
            return None
        if answer["do"] == "welcome":
            return channel
        channel.close()
        if differ := answer.get("differ"):
            raise LaunchError(
                f"The leading launcher on {info.host} rejects this one: "
                f"{self._identity.describe(differ)}. Start the same command on all hosts."
            )
        self._rejection = f", which rejects this one: {answer['why']}"
        if not answer["for_now"]:
            raise LaunchError(
                f"The leading launcher on {info.host} rejects this one: {answer['why']}."
            )
        return None


_REPORT_EVERY = 10.0
_FIRST_REPORT_EARLIER = 9.0
"""Seconds: the first message comes 1 s after the start, as most launchers arrive within it."""


class WaitReporter:
    """Reports a wait to the user: how long it takes, and for whom."""

    def __init__(self, clock: Clock, announce: Callable[[str], None], timeout: float) -> None:
        """Start the wait.

        Args:
            clock: the time.
            announce: says something to the user.
            timeout: seconds that it may take.
        """
        self._clock = clock
        self._announce = announce
        self._timeout = timeout
        self._began = clock.now()
        self._reported = self._began - _FIRST_REPORT_EARLIER

    @property
    def seconds(self) -> float:
        """The duration of the wait so far."""
        return self._clock.now() - self._began

    @property
    def is_over(self) -> bool:
        """Whether the wait has timed out."""
        return self.seconds > self._timeout

    def report(self, whom: str) -> None:
        """Announce the wait, at most every 10 s."""
        now = self._clock.now()
        if now - self._reported > _REPORT_EVERY:
            self._reported = now
            self._announce(f"waiting for {whom}: {now - self._began:.0f} s so far")
