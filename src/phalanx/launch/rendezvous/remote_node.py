"""Another host as a home of workers, and a worker there as the supervisor knows workers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict
from signal import Signals
from typing import Any

from phalanx.cluster.exit_codes import EXIT_NODE_LOST
from phalanx.cluster.spec import WorkerSpec
from phalanx.errors import LaunchError
from phalanx.launch.rendezvous.channel import Channel, Message
from phalanx.launch.rendezvous.node import GPUs
from phalanx.launch.rendezvous.server import RendezvousServer

_ANSWER = 60
"""Seconds to wait for an answer."""


class RemoteNode:
    """Another host, as a home of workers; see `phalanx.launch.rendezvous.node.Node`."""

    def __init__(
        self,
        index: int,
        *,
        arrivals: RendezvousServer,
        wait_for: Callable[[Sequence[int]], None],
    ) -> None:
        """Begin with nothing heard.

        Args:
            index: the place of the launcher there.
            arrivals: has the wire to it.
            wait_for: waits for launchers, by place.
        """
        self.index = index
        self.signals: list[int] = []
        self._arrivals = arrivals
        self._wait_for = wait_for
        self._numbers = itertools.count()
        self._answers: dict[int, Message] = {}
        self._codes: dict[int, int] = {}

    @property
    def address(self) -> str:
        """The host's name or address."""
        return self._arrivals.address(self.index)

    def pick_ports(self, count: int) -> list[int]:
        """Ports that are free there; waits for the host to come back where it was lost."""
        return list(self._ask({"do": "pick_ports", "count": count})["ports"])

    def start(self, spec: WorkerSpec, gpus: GPUs) -> RemoteWorker:
        """Start a worker there."""
        answer = self._ask({"do": "start", **_worker(spec, gpus)}, rank=spec.rank)
        if "error" in answer:
            raise LaunchError(
                f"On {self.address} worker {spec.rank} could not be started: {answer['error']}",
                rank=spec.rank,
            )
        wire = self._arrivals.wire(self.index)
        return RemoteWorker(self, wire, number=answer["number"], pid=answer["pid"])

    def get_ready(self, spec: WorkerSpec, gpus: GPUs) -> None:
        """Have a process stand ready there."""
        self._tell({"do": "get_ready", **_worker(spec, gpus)})

    def cool(self) -> None:
        """End the process that stands ready there."""
        self._tell({"do": "cool"})

    def look(self) -> None:
        """Take in what the host has sent."""
        wire = self._arrivals.wire(self.index)
        while wire is not None and (message := wire.take()) is not None:
            self._take(message)

    def code_of(self, number: int) -> int | None:
        """The exit code of a process there; None as long as it is not known."""
        self.look()
        return self._codes.get(number)

    def _take(self, message: Message) -> None:
        if message["do"] == "answer":
            self._answers[message["to"]] = message
        elif message["do"] == "ended":
            self._codes[message["number"]] = message["code"]
        elif message["do"] == "signal":
            self.signals.append(message["number"])

    def _tell(self, message: dict[str, Any]) -> None:
        if (wire := self._arrivals.wire(self.index)) is not None:
            wire.send(message)

    def _ask(self, message: dict[str, Any], rank: int | None = None) -> Message:
        """Ask, and wait for the answer.

        Raises:
            LaunchError: the host is lost, and does not come back in time.
        """
        try:
            self._wait_for([self.index])
        except LaunchError as error:
            error.rank = rank
            raise
        wire = self._arrivals.wire(self.index)
        number = next(self._numbers)
        if wire is not None:
            wire.send({**message, "ask": number})
            while not wire.is_lost and (answer := _next_message(wire)) is not None:
                self._take(answer)
                if number in self._answers:
                    return self._answers.pop(number)
        raise LaunchError(
            f"The launcher on {self.address} ({self.index}) gave no answer: its host is lost.",
            rank=rank,
        )


class RemoteWorker:
    """A worker on another host; see `phalanx.launch.process.WorkerHandle`."""

    def __init__(self, home: RemoteNode, wire: Channel | None, *, number: int, pid: int) -> None:
        self._home = home
        self._wire = wire
        self._number = number
        self._pid = pid

    @property
    def pid(self) -> int:
        """Its process id there."""
        return self._pid

    @property
    def host(self) -> str:
        """The host's name or address."""
        return self._home.address

    def poll(self) -> int | None:
        """The exit code, `EXIT_NODE_LOST` where its host is lost, None while it runs."""
        code = self._home.code_of(self._number)
        if code is None and (self._wire is None or self._wire.is_lost):
            return EXIT_NODE_LOST
        return code

    def ask(self, number: Signals) -> None:
        """Send a signal to the worker alone."""
        self._send(number, family=False)

    def signal(self, number: Signals) -> None:
        """Send a signal to the worker and all that it started."""
        self._send(number, family=True)

    def _send(self, number: Signals, *, family: bool) -> None:
        if self._wire is not None:
            self._wire.send(
                {"do": "signal", "number": self._number, "signal": int(number), "family": family}
            )


def _next_message(wire: Channel) -> Message | None:
    # In short waits: of a wait in which this process was stopped, one alone counts.
    for _ in range(_ANSWER):
        if (message := wire.take(1.0)) is not None or wire.is_lost:
            return message
    return None


def _worker(spec: WorkerSpec, gpus: GPUs) -> dict[str, Any]:
    return {"spec": asdict(spec), "gpus": None if gpus is None else list(gpus)}
