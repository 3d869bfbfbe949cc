"""A follower: starts workers on its node when the leader requests them, and ends with it."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.cluster.spec import WorkerSpec
from phalanx.errors import LaunchError
from phalanx.launcher.context import LaunchContext
from phalanx.launcher.options import RunOptions
from phalanx.launcher.preemption import SIGNALS
from phalanx.launcher.prefork import PreforkPool
from phalanx.launcher.process import WorkerHandle
from phalanx.launcher.rendezvous.channel import Channel, Message
from phalanx.launcher.rendezvous.client import LONGEST_GAP, RendezvousClient
from phalanx.launcher.rendezvous.identity import CommandIdentity
from phalanx.launcher.rendezvous.node import GPUs, LocalNode, pick_public_ports
from phalanx.launcher.run_dir import versions
from phalanx.launcher.run_result import RunResult
from phalanx.launcher.scratch import remove_scratch
from phalanx.launcher.signals import SignalCatcher
from phalanx.launcher.supervisor import Clock, MonotonicClock, Timeouts

_POLL = 0.1


@dataclass(frozen=True, kw_only=True)
class RunEnded:
    """The result of the run, as the leader reports it."""

    code: int
    report: str | None


class RendezvousFollower:
    """Follows the leader of one run."""

    def __init__(
        self,
        client: RendezvousClient,
        root: Path,
        node: LocalNode,
        *,
        signals: SignalCatcher,
        clock: Clock,
        announce: Callable[[str], None],
    ) -> None:
        """Prepare.

        Args:
            client: connects to the leader, at the start and after a loss.
            root: the directory of all runs, which the hosts share.
            node: starts workers here.
            signals: those that reached this launcher.
            clock: the time.
            announce: says something to the user.
        """
        self._root = root.absolute()
        self._node = node
        self._client = client
        self._signals = signals
        self._clock = clock
        self._announce = announce
        self._numbers = itertools.count()
        self._workers: dict[int, WorkerHandle] = {}

    def run(self) -> RunEnded:
        """Serve the leader until it ends the run.

        Raises:
            LaunchError: there is no leader, it rejects this launcher, or a signal came
                while there was none.
        """
        try:
            while True:
                channel, _ = self._client.join()
                ended = self._serve(channel)
                if ended is not None:
                    return ended
                self._stop_workers()
                self._announce(
                    f"lost the leading launcher on {self._client.leader}: the workers here are "
                    "stopped; looking for it again"
                )
        finally:
            self._stop_workers()
            self._node.shutdown_pool()

    def _serve(self, channel: Channel) -> RunEnded | None:
        """Handle the leader's messages until it ends the run; None if the leader is lost."""
        forwarded = self._signals.count()
        while not channel.is_lost:
            message = channel.receive(_POLL)
            while message is not None:
                if message["do"] == "end":
                    return RunEnded(code=message["code"], report=message["report"])
                self._handle(channel, message)
                message = channel.receive()
            self._report_exits(channel)
            if self._signals.count() > forwarded:
                forwarded = self._signals.count()
                channel.send({"do": "signal", "number": self._signals.first})
        return None

    def _handle(self, channel: Channel, message: Message) -> None:
        if message["do"] == "pick_ports":
            self._answer(channel, message, ports=self._node.pick_ports(message["count"]))
        elif message["do"] == "start":
            self._start(channel, message)
        elif message["do"] == "prewarm":
            self._node.prewarm(*self._worker(message))
        elif message["do"] == "shutdown_pool":
            self._node.shutdown_pool()
        elif message["do"] == "signal" and message["number"] in self._workers:
            worker, number = self._workers[message["number"]], signal.Signals(message["signal"])
            (worker.signal if message["family"] else worker.ask)(number)

    def _start(self, channel: Channel, message: Message) -> None:
        try:
            worker = self._node.start(*self._worker(message))
        except (LaunchError, OSError) as error:
            self._answer(channel, message, error=str(error))
            return
        number = next(self._numbers)
        self._workers[number] = worker
        self._answer(channel, message, number=number, pid=worker.pid)

    def _worker(self, message: Message) -> tuple[WorkerSpec, GPUs]:
        spec = WorkerSpec.from_fields(message["spec"])
        run = self._root / Path(str(spec.run_dir)).name
        return replace(spec, run_dir=str(run)), message["gpus"]

    def _answer(self, channel: Channel, message: Message, **fields: Any) -> None:
        channel.send({"do": "answer", "to": message["ask"], **fields})

    def _report_exits(self, channel: Channel) -> None:
        for number, worker in list(self._workers.items()):
            code = worker.poll()
            if code is not None:
                del self._workers[number]
                remove_scratch([worker.pid])
                channel.send({"do": "ended", "number": number, "code": code})

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


def run_follower(
    options: RunOptions, context: LaunchContext, node_group: ClusterEnvironment
) -> RunResult:
    """Start workers for the leader, until the run is over.

    Raises:
        LaunchError: there is no leader, or it rejects this launcher.
    """
    command = context.command(options.target, options.arguments, as_module=options.as_module)
    node = LocalNode(
        command=command,
        environment={**context.environment, **options.env},
        address=node_group.hosts[node_group.index],
        picks=pick_public_ports,
        warm=PreforkPool(context.announce),
    )
    with SignalCatcher((signal.SIGINT, signal.SIGHUP, *SIGNALS)) as signals:
        clock, announce = MonotonicClock(longest_gap=LONGEST_GAP), context.announce
        client = RendezvousClient(
            node_group,
            options.run_dir,
            machine=context.machine,
            versions=versions(),
            signals=signals,
            clock=clock,
            announce=announce,
            rendezvous_timeout=options.rendezvous_timeout,
            identity=CommandIdentity.of(options),
            name=options.name,
        )
        ended = RendezvousFollower(
            client, options.run_dir, node, signals=signals, clock=clock, announce=announce
        ).run()
    return RunResult(exit_code=ended.code, run_dir=options.run_dir, report=ended.report)
