"""What one host answers when the leading doctor asks: over the channel, or its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Any

from phalanx.diagnostics.doctor.all_reduce import SECONDS, AddingWorker
from phalanx.diagnostics.doctor.cluster_check.bandwidth import Probe, measure
from phalanx.diagnostics.doctor.cluster_check.network_links import know
from phalanx.diagnostics.doctor.result import Result
from phalanx.launch.ports import pick_free_ports
from phalanx.launch.rendezvous.store import RendezvousInfo

LONGEST = SECONDS + 60.0
"""Seconds after which no answer will come."""
_OF_LEADER = "leader"

StartAdding = Callable[[int, Sequence[str]], AddingWorker]
"""Starts a worker with an index at the addresses of both."""


class Answers:
    """Of one host."""

    def __init__(
        self,
        index: int,
        *,
        results: Sequence[Result],
        versions: Mapping[str, str],
        probe: Probe,
        token: str,
        root: Path,
        start: StartAdding = AddingWorker,
    ) -> None:
        """Prepare.

        Args:
            index: the host's.
            results: what the doctor found here.
            versions: of the packages here.
            probe: listens for the others.
            token: the info's.
            root: the directory of all runs, as this host calls it.
            start: starts one of two processes that add up.
        """
        self._index = index
        self._results = results
        self._versions = versions
        self._probe = probe
        self._token = token
        self._root = root
        self._start = start
        self._by_name: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "tell": self._tell,
            "clock": lambda asked: {"time": time.time()},
            "names": self._names,
            "see": self._see,
            "measure": self._measure,
            "ports": lambda asked: {"ports": pick_free_ports(asked["count"], host="")},
            "add": self._add,
        }

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one question; `problem` is in it where there is none."""
        return self._by_name[asked["do"]](asked)

    def _tell(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "results": [asdict(result) for result in self._results],
            "versions": dict(self._versions),
            "port": self._probe.port,
        }

    def _names(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        return {"known": [one.to_fields() for one in know(asked["hosts"], self._index)]}

    def _see(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Read what the leader wrote, and write a file that it can read."""
        place = self._root / asked["place"]
        try:
            if (place / _OF_LEADER).read_text(encoding="utf-8") != asked["text"]:
                return {"error": "what the first host wrote there reads otherwise here"}
            write(place, self._index, asked["text"])
        except OSError as problem:
            return {"error": str(problem)}
        return {}

    def _measure(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        there = RendezvousInfo(host=asked["host"], port=asked["port"], token=self._token)
        try:
            return asdict(measure(there))
        except (OSError, EOFError, AuthenticationError) as problem:
            return {"error": str(problem) or type(problem).__name__}

    def _add(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        worker = self._start(asked["index"], asked["addresses"])
        try:
            found = worker.result()
        finally:
            worker.kill()
        return {"error": found.error} if found.speed is None else found.speed.to_fields()


def write(place: Path, index: int, text: str) -> None:
    """Leave a file in the shared directory, by a rename as checkpoints are."""
    name = f"host-{index}" if index else _OF_LEADER
    partial = place / f"{name}.part"
    partial.write_text(text, encoding="utf-8")
    partial.replace(place / name)


def read(place: Path, index: int) -> str | None:
    """What a host has left there; None where nothing is."""
    try:
        return (place / f"host-{index}").read_text(encoding="utf-8")
    except OSError:
        return None
