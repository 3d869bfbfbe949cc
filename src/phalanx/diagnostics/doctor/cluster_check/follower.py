"""The doctor of a follower: checks its own node, and answers the requests of the leader."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Any

from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.diagnostics.doctor.all_reduce import SECONDS, AllReduceWorker
from phalanx.diagnostics.doctor.cluster_check.findings import resolve_names
from phalanx.diagnostics.doctor.cluster_check.network_links import LinkProbe, measure
from phalanx.diagnostics.doctor.result import Result
from phalanx.errors import LaunchError
from phalanx.launcher.ports import pick_free_ports
from phalanx.launcher.rendezvous.channel import Channel
from phalanx.launcher.rendezvous.client import RendezvousClient
from phalanx.launcher.rendezvous.store import RendezvousInfo, rendezvous_path
from phalanx.launcher.resources import Machine
from phalanx.launcher.signals import SignalCatcher
from phalanx.launcher.supervisor import Clock


@dataclass(frozen=True, kw_only=True)
class UnreachableMarker:
    """A file in the shared directory, by which a node reports that it does not reach the leader.

    So the leader knows that the node is up, and others can still measure their links to it.

    Attributes:
        index: the node rank.
        host: the host name, as the node reports it.
        port: the port of its probe.
        why: the error of the connection to the leader.
        to: the port of the leader. Markers of an earlier leader are ignored.
    """

    index: int
    host: str
    port: int
    why: str
    to: int

    def write(self, directory: Path, info: RendezvousInfo) -> None:
        """Write the file atomically; no error if the directory is full."""
        path = _path(directory, info, self.index)
        with suppress(OSError):
            partial = path.with_suffix(f".{os.getpid()}.part")
            partial.write_text(json.dumps(asdict(self)), encoding="utf-8")
            partial.replace(path)

    @classmethod
    def find(cls, directory: Path, info: RendezvousInfo, index: int) -> UnreachableMarker | None:
        """The marker of a node for this leader; None if there is none."""
        try:
            found = cls(**json.loads(_path(directory, info, index).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        return found if found.to == info.port and found.index == index else None

    @staticmethod
    def remove(directory: Path, info: RendezvousInfo, index: int) -> None:
        """Remove the file."""
        with suppress(OSError):
            _path(directory, info, index).unlink()


def _path(directory: Path, info: RendezvousInfo, index: int) -> Path:
    return directory / f".rendezvous-marker-{info.port}-{index}.json"


ANSWER_TIMEOUT = SECONDS + 60.0
"""Seconds; the longest request is an all-reduce."""
_LEADER_FILE = "leader"

StartAllReduceWorker = Callable[[int, Sequence[str]], AllReduceWorker]
"""Starts the all-reduce worker with an index, at the addresses of both."""


class NodeService:
    """Answers the leader's requests on one node."""

    def __init__(
        self,
        index: int,
        *,
        results: Sequence[Result],
        versions: Mapping[str, str],
        probe: LinkProbe,
        token: str,
        root: Path,
        start: StartAllReduceWorker = AllReduceWorker,
    ) -> None:
        """Prepare.

        Args:
            index: the node rank.
            results: of the checks of this node.
            versions: of the packages on this node.
            probe: answers link measurements of other nodes.
            token: the token of the rendezvous.
            root: the directory of all runs, by its path on this node.
            start: starts one of the two all-reduce workers.
        """
        self._index = index
        self._results = results
        self._versions = versions
        self._probe = probe
        self._token = token
        self._root = root
        self._start = start
        self._handlers: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "report": self._report,
            "clock": lambda request: {"time": time.time()},
            "names": self._names,
            "check_directory": self._check_directory,
            "measure": self._measure,
            "ports": lambda request: {"ports": pick_free_ports(request["count"], host="")},
            "all_reduce": self._all_reduce,
        }

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request; it has `error` if the request fails."""
        return self._handlers[request["do"]](request)

    def _report(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "results": [asdict(result) for result in self._results],
            "versions": dict(self._versions),
            "port": self._probe.port,
        }

    def _names(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {"known": [one.to_fields() for one in resolve_names(request["hosts"], self._index)]}

    def _check_directory(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Read what the leader wrote, and write a file that it can read."""
        directory = self._root / request["directory"]
        try:
            if (directory / _LEADER_FILE).read_text(encoding="utf-8") != request["text"]:
                return {"error": "a file that the first host wrote has another content here"}
            write_file(directory, self._index, request["text"])
        except OSError as problem:
            return {"error": str(problem)}
        return {}

    def _measure(self, request: Mapping[str, Any]) -> dict[str, Any]:
        there = RendezvousInfo(host=request["host"], port=request["port"], token=self._token)
        try:
            return asdict(measure(there))
        except (OSError, EOFError, AuthenticationError) as problem:
            return {"error": str(problem) or type(problem).__name__}

    def _all_reduce(self, request: Mapping[str, Any]) -> dict[str, Any]:
        worker = self._start(request["index"], request["addresses"])
        try:
            found = worker.result()
        finally:
            worker.kill()
        return {"error": found.error} if found.speed is None else found.speed.to_fields()


def write_file(directory: Path, index: int, text: str) -> None:
    """Write a node's file to the shared directory, by a rename as for checkpoints."""
    name = f"host-{index}" if index else _LEADER_FILE
    partial = directory / f"{name}.part"
    partial.write_text(text, encoding="utf-8")
    partial.replace(directory / name)


def read_file(directory: Path, index: int) -> str | None:
    """The content of a node's file; None if there is none."""
    try:
        return (directory / f"host-{index}").read_text(encoding="utf-8")
    except OSError:
        return None


_POLL = 0.2


class CheckFollower:
    """Serves the leader of one `phalanx doctor --cluster`."""

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
        start: StartAllReduceWorker = AllReduceWorker,
    ) -> None:
        """Prepare.

        Args:
            node_group: the nodes to check.
            root: the directory of all runs, which the hosts share.
            results: of the checks of this node.
            versions: of the packages on this node.
            clock: the time.
            announce: prints a message for the user.
            rendezvous_timeout: seconds to wait for the leader.
            start: starts one of the two all-reduce workers.
        """
        self._node_group = node_group
        self._root = root.absolute()
        self._path = rendezvous_path(self._root, node_group)
        self._results = results
        self._versions = versions
        self._start = start
        self._probes: dict[str, LinkProbe] = {}
        self._marker: UnreachableMarker | None = None
        self._client = RendezvousClient(
            node_group,
            root,
            machine=Machine(),
            versions=versions,
            signals=SignalCatcher(()),
            clock=clock,
            announce=announce,
            rendezvous_timeout=rendezvous_timeout,
            on_unreachable=self._write_marker,
            gives_up=lambda: self._marker is not None and not self._path.exists(),
        )

    def run(self) -> int:
        """Answer requests until the leader ends; gives its exit code.

        Raises:
            LaunchError: there is no leader, this node does not reach it, or it is lost.
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
            if self._marker is None:
                raise
            raise LaunchError(
                f"This host ({self._node_group.index}) does not reach the leading doctor on "
                f"{self._node_group.hosts[0] or 'the first host'}, port {self._marker.to}: "
                f"{self._marker.why}. The leading doctor finds this in the shared directory, "
                "and names the link."
            ) from problem

    def _serve(self, channel: Channel, info: RendezvousInfo) -> int:
        service = NodeService(
            self._node_group.index,
            results=self._results,
            versions=self._versions,
            probe=self._probe(info),
            token=info.token,
            root=self._root,
            start=self._start,
        )
        while not channel.is_lost:
            request = channel.receive(_POLL)
            if request is None:
                continue
            if request["do"] == "end":
                return int(request["code"])
            channel.send({"do": "answer", "to": request["ask"], **service.answer(request)})
        raise LaunchError(
            f"Lost the leading doctor on {self._node_group.hosts[0] or 'the first host'}. Start it "
            "again on all hosts."
        )

    def _write_marker(self, info: RendezvousInfo, why: str) -> None:
        """The leader is unreachable: report this in the shared directory."""
        self._marker = UnreachableMarker(
            index=self._node_group.index,
            host=socket.gethostname(),
            port=self._probe(info).port,
            why=why,
            to=info.port,
        )
        self._marker.write(self._path.parent, info)

    def _probe(self, info: RendezvousInfo) -> LinkProbe:
        if info.token not in self._probes:
            self._probes[info.token] = LinkProbe(info.key)
        return self._probes[info.token]
