"""The node of a follower, and its workers with the interface that the supervisor expects."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict
from signal import Signals
from typing import Any

from phalanx.cluster.exit_codes import EXIT_NODE_LOST
from phalanx.cluster.spec import WorkerSpec
from phalanx.errors import UnavailableError
from phalanx.launcher.rendezvous.channel import Channel, Message
from phalanx.launcher.rendezvous.node import GPUs
from phalanx.launcher.rendezvous.server import RendezvousServer

_ANSWER = 60
"""Seconds to wait for an answer."""


class RemoteNode:
    """The node of a follower; see `phalanx.launcher.rendezvous.node.Node`."""

    def __init__(
        self,
        index: int,
        *,
        server: RendezvousServer,
        wait_for: Callable[[Sequence[int]], None],
    ) -> None:
        """Prepare.

        Args:
            index: the node rank of the follower.
            server: has the channel to it.
            wait_for: waits for launchers, by node rank.
        """
        self.index = index
        self.signals: list[int] = []
        self._server = server
        self._wait_for = wait_for
        self._numbers = itertools.count()
        self._answers: dict[int, Message] = {}
        # A follower numbers its workers from 0: after a restart of its launcher, which is another
        # channel, the same numbers mean other workers.
        self._codes: dict[tuple[Channel, int], int] = {}

    @property
    def address(self) -> str:
        """The host's name or address."""
        return self._server.address(self.index)

    @property
    def is_lost(self) -> bool:
        """Whether the follower is not connected now."""
        return self._server.channel(self.index) is None

    def pick_ports(self, count: int) -> list[int]:
        """Ports that are free there; waits for the host to reconnect if it is lost."""
        _, answer = self._ask({"do": "pick_ports", "count": count})
        return list(answer["ports"])

    def start(self, spec: WorkerSpec, gpus: GPUs) -> RemoteWorker:
        """Start a worker there."""
        channel, answer = self._ask({"do": "start", **_worker(spec, gpus)})
        if "error" in answer:
            raise UnavailableError(
                f"On {self.address} worker {spec.rank} could not be started: {answer['error']}"
            )
        return RemoteWorker(self, channel, number=answer["number"], pid=answer["pid"])

    def prewarm(self, spec: WorkerSpec, gpus: GPUs) -> None:
        """Prepare a process there."""
        self._send({"do": "prewarm", **_worker(spec, gpus)})

    def shutdown_pool(self) -> None:
        """End the prepared process there."""
        self._send({"do": "shutdown_pool"})

    def poll(self) -> None:
        """Handle the messages that the follower has sent."""
        channel = self._server.channel(self.index)
        if channel is not None:
            self._receive(channel)

    def code_of(self, channel: Channel, number: int) -> int | None:
        """The exit code of a process there; None until it is known.

        Args:
            channel: the one over which the process was started; it may be lost by now.
            number: of the process, by the follower at the other end of that channel.
        """
        self._receive(channel)
        return self._codes.get((channel, number))

    def _receive(self, channel: Channel) -> None:
        while (message := channel.receive()) is not None:
            self._handle(channel, message)

    def _handle(self, channel: Channel, message: Message) -> None:
        if message["do"] == "answer":
            self._answers[message["to"]] = message
        elif message["do"] == "ended":
            self._codes[channel, message["number"]] = message["code"]
        elif message["do"] == "signal":
            self.signals.append(message["number"])

    def _send(self, message: dict[str, Any]) -> None:
        if (channel := self._server.channel(self.index)) is not None:
            channel.send(message)

    def _ask(self, message: dict[str, Any]) -> tuple[Channel, Message]:
        """Send a request and wait for the answer; gives it with the channel it came over.

        Raises:
            UnavailableError: the host is lost, and does not reconnect in time.
        """
        self._wait_for([self.index])
        channel = self._server.channel(self.index)
        number = next(self._numbers)
        if channel is not None:
            channel.send({**message, "ask": number})
            while not channel.is_lost and (answer := _next_message(channel)) is not None:
                self._handle(channel, answer)
                if number in self._answers:
                    return channel, self._answers.pop(number)
        raise UnavailableError(
            f"The launcher on {self.address} ({self.index}) gave no answer: its host is lost."
        )


class RemoteWorker:
    """A worker on another host; see `phalanx.launcher.process.WorkerHandle`."""

    def __init__(self, node: RemoteNode, channel: Channel, *, number: int, pid: int) -> None:
        self._node = node
        self._channel = channel
        self._number = number
        self._pid = pid

    @property
    def pid(self) -> int:
        """Its process id there."""
        return self._pid

    @property
    def host(self) -> str:
        """The host's name or address."""
        return self._node.address

    def poll(self) -> int | None:
        """The exit code, `EXIT_NODE_LOST` where its host is lost, None while it runs."""
        # Before the code: one that arrives in between is found at the next call.
        is_lost = self._channel.is_lost
        code = self._node.code_of(self._channel, self._number)
        return EXIT_NODE_LOST if code is None and is_lost else code

    def ask(self, number: Signals) -> None:
        """Send a signal to the worker alone."""
        self._send(number, family=False)

    def signal(self, number: Signals) -> None:
        """Send a signal to the worker and all its child processes."""
        self._send(number, family=True)

    def _send(self, number: Signals, *, family: bool) -> None:
        self._channel.send(
            {"do": "signal", "number": self._number, "signal": int(number), "family": family}
        )


def _next_message(channel: Channel) -> Message | None:
    # In short waits: if the process is stopped (SIGSTOP) meanwhile, only one counts.
    for _ in range(_ANSWER):
        if (message := channel.receive(1.0)) is not None or channel.is_lost:
            return message
    return None


def _worker(spec: WorkerSpec, gpus: GPUs) -> dict[str, Any]:
    return {"spec": asdict(spec), "gpus": None if gpus is None else list(gpus)}
