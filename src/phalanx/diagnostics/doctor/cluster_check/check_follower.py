"""A doctor that follows: it looks at its own host, and answers what the leading one asks."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.diagnostics.doctor.all_reduce import AddingWorker
from phalanx.diagnostics.doctor.cluster_check.bandwidth import Probe
from phalanx.diagnostics.doctor.cluster_check.node_service import Answers, StartAdding
from phalanx.diagnostics.doctor.cluster_check.unreachable_marker import Sign
from phalanx.diagnostics.doctor.result import Result
from phalanx.errors import LaunchError
from phalanx.launch.rendezvous.channel import Channel
from phalanx.launch.rendezvous.client import RendezvousClient
from phalanx.launch.rendezvous.store import RendezvousInfo, rendezvous_path
from phalanx.launch.resources import Machine
from phalanx.launch.signals import SignalCatcher
from phalanx.launch.supervisor import Clock

_POLL = 0.2


class CheckFollower:
    """Answers the leader of one examination."""

    def __init__(
        self,
        node_group: ClusterEnvironment,
        root: Path,
        *,
        results: Sequence[Result],
        versions: Mapping[str, str],
        clock: Clock,
        announce: Callable[[str], None],
        rendezvous_timeout: float,
        start: StartAdding = AddingWorker,
    ) -> None:
        """Prepare.

        Args:
            node_group: where the doctors are.
            root: the directory of all runs, which the hosts share.
            results: what was found on this host.
            versions: of the packages here.
            clock: the time.
            announce: says something to the user.
            rendezvous_timeout: seconds to look for the leader.
            start: starts one of two processes that add up.
        """
        self._node_group = node_group
        self._root = root.absolute()
        self._path = rendezvous_path(self._root, node_group)
        self._results = results
        self._versions = versions
        self._start = start
        self._probes: dict[str, Probe] = {}
        self._sign: Sign | None = None
        self._client = RendezvousClient(
            node_group,
            root,
            machine=Machine(),
            versions=versions,
            signals=SignalCatcher(()),
            clock=clock,
            announce=announce,
            rendezvous_timeout=rendezvous_timeout,
            on_unreachable=self._leave_sign,
            gives_up=lambda: self._sign is not None and not self._path.exists(),
        )

    def run(self) -> int:
        """Answer until the leader has seen all; gives its exit code.

        Raises:
            LaunchError: there is no leader, this host does not reach it, or it is gone.
        """
        try:
            return self._serve(*self._join())
        finally:
            for probe in self._probes.values():
                probe.close()

    def _join(self) -> tuple[Channel, RendezvousInfo]:
        try:
            return self._client.join()
        except LaunchError as problem:
            if self._sign is None:
                raise
            raise LaunchError(
                f"This host ({self._node_group.index}) does not reach the leading doctor on "
                f"{self._node_group.hosts[0] or 'the first host'}, port {self._sign.to}: "
                f"{self._sign.why}. The leading doctor was told so by the shared directory, and "
                "names the link."
            ) from problem

    def _serve(self, channel: Channel, info: RendezvousInfo) -> int:
        answers = Answers(
            self._node_group.index,
            results=self._results,
            versions=self._versions,
            probe=self._probe(info),
            token=info.token,
            root=self._root,
            start=self._start,
        )
        while not channel.is_lost:
            asked = channel.receive(_POLL)
            if asked is None:
                continue
            if asked["do"] == "end":
                return int(asked["code"])
            channel.send({"do": "answer", "to": asked["ask"], **answers.answer(asked)})
        raise LaunchError(
            f"Lost the leading doctor on {self._node_group.hosts[0] or 'the first host'}. Start it "
            "again on all hosts."
        )

    def _leave_sign(self, info: RendezvousInfo, why: str) -> None:
        """The leader cannot be reached: leave word where it may look."""
        self._sign = Sign(
            index=self._node_group.index,
            host=socket.gethostname(),
            port=self._probe(info).port,
            why=why,
            to=info.port,
        )
        self._sign.leave(self._path.parent, info)

    def _probe(self, info: RendezvousInfo) -> Probe:
        if info.token not in self._probes:
            self._probes[info.token] = Probe(info.key)
        return self._probes[info.token]
