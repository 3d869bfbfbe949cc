"""What the leading doctor asks of all hosts, and what it makes of the answers."""

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

from phalanx.diagnostics.doctor.all_reduce_cost import Speed, needs
from phalanx.diagnostics.doctor.cluster_check import findings
from phalanx.diagnostics.doctor.cluster_check.bandwidth import Measured
from phalanx.diagnostics.doctor.cluster_check.network_links import Known, Link, judge, rounds
from phalanx.diagnostics.doctor.cluster_check.node_client import Asked, OwnHost
from phalanx.diagnostics.doctor.cluster_check.node_gathering import Gathered
from phalanx.diagnostics.doctor.cluster_check.node_service import read, write
from phalanx.diagnostics.doctor.result import Result, failed, ok

_CLOCK_LOOKS = 5
_SEEN_WITHIN = 10.0
"""Seconds that a network file system may take to show a file that another host has made."""


class Examination:
    """Of all hosts that are there."""

    def __init__(
        self, own: OwnHost, gathered: Gathered, *, root: Path, parameters: int, port: int
    ) -> None:
        """Prepare.

        Args:
            own: the leader's host.
            gathered: the others.
            root: the directory of all runs.
            parameters: of the model whose steps are spoken of.
            port: of the leader's probe.
        """
        self._hosts: dict[int, Asked] = {0: own, **gathered.others}
        self._gathered = gathered
        self._root = root
        self._parameters = parameters
        self._ports = {0: port, **{at: sign.port for at, sign in gathered.signs.items()}}
        self.links: list[Link] = []

    def results(self) -> Iterator[Result]:
        """All findings, as they come."""
        yield from self._told()
        yield from self._clocks()
        yield from self._names()
        yield from self._directory()
        yield from self._links()
        yield from self._all_reduce()

    def _told(self) -> Iterator[Result]:
        """What each has found on its own host, and the versions there."""
        versions: dict[str, Mapping[str, str]] = {}
        for at, host in self._hosts.items():
            told, name = host.ask("tell"), self._gathered.called(at)
            if "error" in told:
                yield _silent(name, told["error"])
                continue
            self._ports[at] = told["port"]
            versions[name] = told["versions"]
            for fields in told["results"]:
                yield replace(Result(**fields), host=name)
        yield from findings.versions(versions)

    def _clocks(self) -> Iterator[Result]:
        ahead: dict[str, float] = {}
        sure = 0.0
        for at, host in self._gathered.others.items():
            looks = [_clock(host) for _ in range(_CLOCK_LOOKS)]
            seen = [look for look in looks if look is not None]
            if seen:
                trip, seconds = min(seen)
                ahead[self._gathered.called(at)] = seconds
                sure = max(sure, trip / 2)
        if ahead:
            yield from findings.clocks(ahead, sure)

    def _names(self) -> Iterator[Result]:
        known: dict[str, list[Known]] = {}
        for at, host in self._hosts.items():
            answer = host.ask("names", hosts=self._gathered.names)
            if "error" not in answer:
                found = [Known.from_fields(one) for one in answer["known"]]
                known[self._gathered.called(at)] = found
        yield from findings.names(known)

    def _directory(self) -> Iterator[Result]:
        place, text = self._root / f".phalanx-doctor-{secrets.token_hex(4)}", secrets.token_hex(8)
        seen: dict[str, str | None] = {}
        try:
            place.mkdir(parents=True)
            write(place, 0, text)
            for at, host in self._gathered.others.items():
                answer = host.ask("see", place=place.name, text=text)
                trouble = answer.get("error") or _unseen(place, at, text)
                seen[self._gathered.called(at)] = trouble
        except OSError as problem:
            seen[self._gathered.called(0)] = str(problem)
        finally:
            with suppress(OSError):
                shutil.rmtree(place)
        if seen:
            yield from findings.directory(str(self._root), seen)

    def _links(self) -> Iterator[Result]:
        """Pairs that have no host in common are measured at the same time."""
        self.links += [
            Link(of=at, to=0, problem=sign.why) for at, sign in self._gathered.signs.items()
        ]
        with ThreadPoolExecutor() as threads:
            for pairs in rounds(len(self._gathered.names)):
                for found in threads.map(self._pair, pairs):
                    self.links += found
        yield from judge(self.links, self._gathered.names)

    def _pair(self, pair: tuple[int, int]) -> list[Link]:
        """Both directions; one that is broken is enough."""
        found: list[Link] = []
        for of, to in (pair, pair[::-1]):
            if of in self._hosts and to in self._ports and not any(one.problem for one in found):
                found.append(self._link(of, to))
        return found

    def _link(self, of: int, to: int) -> Link:
        answer = self._hosts[of].ask("measure", host=self._gathered.names[to], port=self._ports[to])
        if "error" in answer:
            return Link(of=of, to=to, problem=answer["error"])
        fields = {name: answer[name] for name in ("seconds", "longest", "rate")}
        return Link(of=of, to=to, measured=Measured(**fields))

    def _all_reduce(self) -> Iterator[Result]:
        """Of the first host with each other, unless the link between them is broken."""
        broken = {frozenset((link.of, link.to)) for link in self.links if link.problem}
        for at in self._gathered.others:
            if frozenset((0, at)) not in broken:
                yield self._add(at)

    def _add(self, at: int) -> Result:
        both = (0, at)
        ports = [self._hosts[one].ask("ports", count=1) for one in both]
        names = " with ".join(self._gathered.called(one) for one in both)
        if problem := next((one["error"] for one in ports if "error" in one), None):
            return _silent(names, problem)
        addresses = [
            f"{self._gathered.names[one]}:{port['ports'][0]}"
            for one, port in zip(both, ports, strict=True)
        ]
        with ThreadPoolExecutor() as threads:
            answers = list(
                threads.map(
                    lambda index: self._hosts[both[index]].ask(
                        "add", index=index, addresses=addresses
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
        workers = len(self._gathered.names)
        return ok("all-reduce", f"{names}: {speed}; {needs(speed, self._parameters, workers)}")


def _silent(name: str, problem: str) -> Result:
    return failed("host", f"{name} gives no answer: {problem}", "phalanx doctor on it")


def _clock(host: Asked) -> tuple[float, float] | None:
    """The way there and back, and how far its clock is ahead, in seconds."""
    before = time.time()
    answer = host.ask("clock")
    after = time.time()
    if "error" in answer:
        return None
    return after - before, answer["time"] - (before + after) / 2


def _unseen(place: Path, at: int, text: str) -> str | None:
    """What keeps the leader from seeing what a host has written."""
    end = time.monotonic() + _SEEN_WITHIN
    while (found := read(place, at)) is None and time.monotonic() < end:
        time.sleep(0.1)
    if found is None:
        return f"what it writes is not seen on the first host within {_SEEN_WITHIN:.0f} s"
    return None if found == text else "what it writes reads otherwise on the first host"
