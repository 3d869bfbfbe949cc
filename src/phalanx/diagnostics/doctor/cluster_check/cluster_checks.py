"""The checks of all nodes together, which the leader runs."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from phalanx.cluster.authenticated_connection import join_address
from phalanx.diagnostics.doctor.all_reduce import Speed, needs
from phalanx.diagnostics.doctor.cluster_check import findings
from phalanx.diagnostics.doctor.cluster_check.findings import HostName
from phalanx.diagnostics.doctor.cluster_check.follower import read_file, write_file
from phalanx.diagnostics.doctor.cluster_check.network_links import (
    Link,
    LinkMeasurement,
    judge,
    rounds,
)
from phalanx.diagnostics.doctor.cluster_check.nodes import (
    ConnectedNodes,
    LocalNodeClient,
    NodeClient,
)
from phalanx.diagnostics.doctor.result import Result, failed, ok
from phalanx.monitoring.communication_advice import Advice, StepCosts

_CLOCK_READINGS = 5
_SEEN_WITHIN = 10.0
"""Seconds that a network file system may take to show a file that another host has written."""


class ClusterChecks:
    """The checks of all nodes that are connected."""

    def __init__(
        self,
        own: LocalNodeClient,
        connected: ConnectedNodes,
        *,
        root: Path,
        parameters: int,
        step: StepCosts | None,
        port: int,
    ) -> None:
        """Prepare.

        Args:
            own: the client of the leader's node.
            connected: the other nodes.
            root: the directory of all runs.
            parameters: of the model for which the cost of an all-reduce is estimated.
            step: what its step costs elsewhere; None if that is not known.
            port: the port of the leader's probe.
        """
        self._hosts: dict[int, NodeClient] = {0: own, **connected.others}
        self._connected = connected
        self._root = root
        self._parameters = parameters
        self._ports = {0: port, **{at: marker.port for at, marker in connected.markers.items()}}
        self._step = step
        self._speeds: list[Speed] = []
        self.links: list[Link] = []
        self.advice: list[Advice] = []

    def results(self) -> Iterator[Result]:
        """The results of all checks, one by one."""
        yield from self._reports()
        yield from self._clocks()
        yield from self._names()
        yield from self._directory()
        yield from self._links()
        yield from self._all_reduce()
        yield from self._communication()

    def _reports(self) -> Iterator[Result]:
        """The results of the checks of each node, and a comparison of versions."""
        versions: dict[str, Mapping[str, str]] = {}
        for at, host in self._hosts.items():
            report, name = host.ask("report"), self._connected.label(at)
            if "error" in report:
                yield _no_answer(name, report["error"])
                continue
            self._ports[at] = report["port"]
            versions[name] = report["versions"]
            for fields in report["results"]:
                yield replace(Result(**fields), host=name)
        yield from findings.versions(versions)

    def _clocks(self) -> Iterator[Result]:
        ahead: dict[str, float] = {}
        sure = 0.0
        for at, host in self._connected.others.items():
            readings = [_clock(host) for _ in range(_CLOCK_READINGS)]
            seen = [reading for reading in readings if reading is not None]
            if seen:
                trip, seconds = min(seen)
                ahead[self._connected.label(at)] = seconds
                sure = max(sure, trip / 2)
        if ahead:
            yield from findings.clocks(ahead, sure)

    def _names(self) -> Iterator[Result]:
        known: dict[str, list[HostName]] = {}
        for at, host in self._hosts.items():
            answer = host.ask("names", hosts=self._connected.names)
            if "error" not in answer:
                found = [HostName.from_fields(one) for one in answer["known"]]
                known[self._connected.label(at)] = found
        yield from findings.names(known)

    def _directory(self) -> Iterator[Result]:
        scratch, text = self._root / f".phalanx-doctor-{secrets.token_hex(4)}", secrets.token_hex(8)
        seen: dict[str, str | None] = {}
        try:
            scratch.mkdir(parents=True)
            write_file(scratch, 0, text)
            for at, host in self._connected.others.items():
                answer = host.ask("check_directory", directory=scratch.name, text=text)
                trouble = answer.get("error") or _not_visible(scratch, at, text)
                seen[self._connected.label(at)] = trouble
        except OSError as problem:
            seen[self._connected.label(0)] = str(problem)
        finally:
            with suppress(OSError):
                shutil.rmtree(scratch)
        if seen:
            yield from findings.directory(str(self._root), seen)

    def _links(self) -> Iterator[Result]:
        """Pairs that have no host in common are measured at the same time."""
        self.links += [
            Link(of=at, to=0, problem=marker.why) for at, marker in self._connected.markers.items()
        ]
        with ThreadPoolExecutor() as threads:
            for pairs in rounds(len(self._connected.names)):
                for found in threads.map(self._pair, pairs):
                    self.links += found
        yield from judge(self.links, self._connected.names)

    def _pair(self, pair: tuple[int, int]) -> list[Link]:
        """Both directions, until one is broken."""
        found: list[Link] = []
        for of, to in (pair, pair[::-1]):
            if of in self._hosts and to in self._ports and not any(one.problem for one in found):
                found.append(self._link(of, to))
        return found

    def _link(self, of: int, to: int) -> Link:
        answer = self._hosts[of].ask(
            "measure", host=self._connected.names[to], port=self._ports[to]
        )
        if "error" in answer:
            return Link(of=of, to=to, problem=answer["error"])
        fields = {name: answer[name] for name in ("seconds", "longest", "rate")}
        return Link(of=of, to=to, measured=LinkMeasurement(**fields))

    def _all_reduce(self) -> Iterator[Result]:
        """Between the first host and each other, unless the link between them is broken."""
        broken = {frozenset((link.of, link.to)) for link in self.links if link.problem}
        for at in self._connected.others:
            if frozenset((0, at)) not in broken:
                yield self._all_reduce_with(at)

    def _all_reduce_with(self, at: int) -> Result:
        both = (0, at)
        ports = [self._hosts[one].ask("ports", count=1) for one in both]
        names = " with ".join(self._connected.label(one) for one in both)
        if problem := next((one["error"] for one in ports if "error" in one), None):
            return _no_answer(names, problem)
        addresses = [
            join_address(self._connected.names[one], port["ports"][0])
            for one, port in zip(both, ports, strict=True)
        ]
        with ThreadPoolExecutor() as threads:
            answers = list(
                threads.map(
                    lambda index: self._hosts[both[index]].ask(
                        "all_reduce", index=index, addresses=addresses
                    ),
                    range(2),
                )
            )
        return self._judged(names, answers)

    def _judged(self, names: str, answers: list[Mapping[str, Any]]) -> Result:
        if problem := next((one["error"] for one in answers if "error" in one), None):
            return failed(
                "all-reduce",
                f"{names}: {problem}",
                "unset http_proxy https_proxy grpc_proxy on both; see that no firewall closes the "
                "ports above 1024; phalanx doctor on each",
            )
        speed = Speed(seconds=answers[0]["seconds"], rate=answers[0]["rate"])
        self._speeds.append(speed)
        workers = len(self._connected.names)
        return ok("all-reduce", f"{names}: {speed}; {needs(speed, self._parameters, workers)}")

    def _communication(self) -> Iterator[Result]:
        """What would help over the slowest link, for which all others wait."""
        if self._speeds:
            slowest = max(self._speeds, key=lambda speed: speed.of_a_step(self._parameters))
            workers = len(self._connected.names)
            result, self.advice = findings.communication(
                slowest, self._parameters, workers, self._step
            )
            yield result


def _no_answer(name: str, problem: str) -> Result:
    return failed("host", f"{name} gives no answer: {problem}", "phalanx doctor on it")


def _clock(host: NodeClient) -> tuple[float, float] | None:
    """The round trip time, and how far the clock is ahead, in seconds."""
    before = time.time()
    answer = host.ask("clock")
    after = time.time()
    if "error" in answer:
        return None
    return after - before, answer["time"] - (before + after) / 2


def _not_visible(scratch: Path, at: int, text: str) -> str | None:
    """Why the leader does not read what a node has written; None if it does."""
    end = time.monotonic() + _SEEN_WITHIN
    while (found := read_file(scratch, at)) is None and time.monotonic() < end:
        time.sleep(0.1)
    if found is None:
        return f"the first host does not see its file within {_SEEN_WITHIN:.0f} s"
    return None if found == text else "its file has another content on the first host"
