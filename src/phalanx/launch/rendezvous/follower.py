"""A following launcher: starts workers on its host when the leader asks, and ends with it."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phalanx.cluster.spec import WorkerSpec
from phalanx.errors import LaunchError
from phalanx.launch.process import WorkerHandle
from phalanx.launch.rendezvous.channel import Channel, Message
from phalanx.launch.rendezvous.client import RendezvousClient
from phalanx.launch.rendezvous.node import GPUs, LocalNode
from phalanx.launch.scratch import remove_scratch
from phalanx.launch.signals import SignalCatcher
from phalanx.launch.supervisor import Clock, Timeouts

_POLL = 0.1


@dataclass(frozen=True, kw_only=True)
class RunEnded:
    """How the leader ended the run."""

    code: int
    report: str | None


class RendezvousFollower:
    """Follows the leader of one run."""

    def __init__(
        self,
        joining: RendezvousClient,
        root: Path,
        home: LocalNode,
        *,
        signals: SignalCatcher,
        clock: Clock,
        announce: Callable[[str], None],
    ) -> None:
        """Prepare.

        Args:
            joining: finds the leader, at the start and when it was lost.
            root: the directory of all runs, which the hosts share.
            home: starts workers here.
            signals: those that reached this launcher.
            clock: the time.
            announce: says something to the user.
        """
        self._root = root.absolute()
        self._home = home
        self._joining = joining
        self._signals = signals
        self._clock = clock
        self._announce = announce
        self._numbers = itertools.count()
        self._workers: dict[int, WorkerHandle] = {}

    def run(self) -> RunEnded:
        """Serve the leader until it says that the run is over.

        Raises:
            LaunchError: there is no leader, it refuses this launcher, or a signal came
                while there was none.
        """
        try:
            while True:
                wire, _ = self._joining.join()
                ended = self._serve(wire)
                if ended is not None:
                    return ended
                self._stop_workers()
                self._announce(
                    f"the leading launcher on {self._joining.leader} is gone: the workers here are "
                    "stopped; looking for it again"
                )
        finally:
            self._stop_workers()
            self._home.cool()

    def _serve(self, wire: Channel) -> RunEnded | None:
        """Do what is asked; None where the leader was lost."""
        told = self._signals.count()
        while not wire.is_lost:
            message = wire.take(_POLL)
            while message is not None:
                if message["do"] == "end":
                    return RunEnded(code=message["code"], report=message["report"])
                self._do(wire, message)
                message = wire.take()
            self._report_exits(wire)
            if self._signals.count() > told:
                told = self._signals.count()
                wire.send({"do": "signal", "number": self._signals.first})
        return None

    def _do(self, wire: Channel, message: Message) -> None:
        if message["do"] == "pick_ports":
            self._answer(wire, message, ports=self._home.pick_ports(message["count"]))
        elif message["do"] == "start":
            self._start(wire, message)
        elif message["do"] == "get_ready":
            self._home.get_ready(*self._worker(message))
        elif message["do"] == "cool":
            self._home.cool()
        elif message["do"] == "signal" and message["number"] in self._workers:
            worker, number = self._workers[message["number"]], signal.Signals(message["signal"])
            (worker.signal if message["family"] else worker.ask)(number)

    def _start(self, wire: Channel, message: Message) -> None:
        try:
            worker = self._home.start(*self._worker(message))
        except (LaunchError, OSError) as error:
            self._answer(wire, message, error=str(error))
            return
        number = next(self._numbers)
        self._workers[number] = worker
        self._answer(wire, message, number=number, pid=worker.pid)

    def _worker(self, message: Message) -> tuple[WorkerSpec, GPUs]:
        spec = WorkerSpec.from_fields(message["spec"])
        run = self._root / Path(str(spec.run_dir)).name
        return replace(spec, run_dir=str(run)), message["gpus"]

    def _answer(self, wire: Channel, message: Message, **fields: Any) -> None:
        wire.send({"do": "answer", "to": message["ask"], **fields})

    def _report_exits(self, wire: Channel) -> None:
        for number, worker in list(self._workers.items()):
            code = worker.poll()
            if code is not None:
                del self._workers[number]
                remove_scratch([worker.pid])
                wire.send({"do": "ended", "number": number, "code": code})

    def _stop_workers(self) -> None:
        for worker in self._workers.values():
            worker.signal(signal.SIGKILL)
        end = self._clock.now() + Timeouts().after_sigkill
        while running := [w.pid for w in self._workers.values() if w.poll() is None]:
            if self._clock.now() > end:
                named = ", ".join(map(str, running))
                self._announce(f"still there after SIGKILL: process {named}; it is left there")
                break
            self._clock.sleep(_POLL)
        remove_scratch(worker.pid for worker in self._workers.values())
        self._workers.clear()
