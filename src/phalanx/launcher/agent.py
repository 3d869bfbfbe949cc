"""The attempts of a run: starts the worker group, waits for its end, restarts it."""

from __future__ import annotations

import json
import secrets
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

from phalanx.cluster.exit_codes import RESUME_EXIT_CODE
from phalanx.cluster.spec import WorkerSpec
from phalanx.errors import LaunchError, UnavailableError
from phalanx.launcher.data_servers import DataServers
from phalanx.launcher.elastic import (
    BelowMinimum,
    ElasticMembership,
    MembershipChange,
    ScaleUpMonitor,
)
from phalanx.launcher.failure import FailureRecord
from phalanx.launcher.forkserver import ForkedWorker
from phalanx.launcher.hang_detector import HangDetector
from phalanx.launcher.options import RunOptions
from phalanx.launcher.preemption import SIGNALS
from phalanx.launcher.process import WorkerHandle
from phalanx.launcher.ps_tasks import Replacements
from phalanx.launcher.rendezvous.node import Node, allocate_addresses
from phalanx.launcher.rendezvous.remote_node import RemoteWorker
from phalanx.launcher.restart_policy import GiveUp, RestartBudget, RestartDecision, RestartPolicy
from phalanx.launcher.root_cause import WorkerExit, is_port_conflict, root_cause
from phalanx.launcher.run_layout import AttemptPaths
from phalanx.launcher.run_result import RunResult, preemption_message, resolve_result
from phalanx.launcher.scratch import remove_scratch
from phalanx.launcher.showing import Showing
from phalanx.launcher.signals import SignalCatcher
from phalanx.launcher.supervisor import Clock, Supervisor, Timeouts
from phalanx.launcher.tee import Tee, ranks_to_show
from phalanx.launcher.worker_group import WorkerGroupSpec, start_worker_group, worker_specs
from phalanx.monitoring.durable_files import PRIVATE_DIR
from phalanx.monitoring.event_log import EventLog
from phalanx.monitoring.events import (
    AttemptStart,
    PreemptionEvent,
    Resize,
    Restart,
    Stall,
    WorkerReplaced,
)

PORT_TRIES = 4


@dataclass(kw_only=True)
class RestartState:
    """What is kept from one attempt to the next."""

    restarts: RestartBudget
    size: ElasticMembership
    port_tries: int = PORT_TRIES


@dataclass(frozen=True, kw_only=True)
class Agent:
    """All attempts of one run.

    Attributes:
        runner: starts the worker group.
    """

    runner: WorkerGroupRunner

    def run(self) -> RunResult:
        """Start the worker group until it ends well, or no restart is left.

        Raises:
            LaunchError: a worker process could not be started.
        """
        try:
            return self._until_it_ends()
        finally:
            self.runner.shutdown_pool()

    def _until_it_ends(self) -> RunResult:
        most = len(self.runner.plan.resources)
        course = RestartState(
            restarts=RestartBudget(RestartPolicy(most=self.runner.options.max_restarts)),
            size=ElasticMembership(least=self.runner.options.min_workers or most, most=most),
        )
        first = AttemptPaths.next(self.runner.plan.run_dir)
        for attempt in count(first):
            try:
                result = self._judge(attempt, self.runner.run(attempt, course), course)
            except LaunchError as error:
                if (number := self.runner.signals.first) is not None:
                    return RunResult(
                        exit_code=128 + number, run_dir=self.runner.plan.run_dir, report=str(error)
                    )
                change = course.size.could_not_start(error.ranks, now=self.runner.clock.now())
                if isinstance(change, MembershipChange):
                    self._resize(attempt + 1, course.size, change)
                elif attempt == first or not self._waits_for_disk(error, attempt, course):
                    raise
                continue
            if result is not None:
                return result
        raise AssertionError("count() does not end")

    def _judge(self, attempt: int, ran: AttemptResult, course: RestartState) -> RunResult | None:
        """What the run comes to after this attempt; None to restart, after any wait."""
        result = self._result(attempt, ran)
        if unkillable := [each for each in ran.endings if each.unkillable_pid is not None]:
            report = "\n".join(filter(None, (result.report, self._unkillable(unkillable))))
            return replace(result, report=report, exit_code=result.exit_code or 1)
        if self.runner.signals.count() or result.exit_code == 0:
            return result
        cause = None if ran.hang is not None else root_cause(ran.endings)
        if ran.to_grow and cause is None and ran.hang is None:
            self._resize(attempt + 1, course.size, course.size.grow())
            return None
        if result.exit_code == RESUME_EXIT_CODE:
            return result
        if not self.runner.plan.paths(attempt).any_first_step:
            self.runner.shutdown_pool()  # Whatever it was: no fork will be part of it next time.
        if cause is not None and is_port_conflict(cause) and course.port_tries > 1:
            course.port_tries -= 1
            self._record_restart(attempt + 1, cause, seconds=0.0)
            self.runner.announce("another program took a worker's port: restarting with new ones")
            return None
        return self._after_failure(attempt, ran, course, result, cause)

    def _after_failure(
        self,
        attempt: int,
        ran: AttemptResult,
        course: RestartState,
        result: RunResult,
        cause: WorkerExit | None,
    ) -> RunResult | None:
        trained = cause is None or self.runner.plan.paths(attempt).first_step(cause.rank).exists()
        rank = cause.rank if cause is not None else None
        change = course.size.failed(rank, trained=trained, now=self.runner.clock.now())
        resized = isinstance(change, MembershipChange)
        decision: RestartDecision | GiveUp = RestartDecision(seconds=0.0, number=0)
        if isinstance(change, BelowMinimum):
            decision = GiveUp(why=change.why)
        elif not (isinstance(change, MembershipChange) and change.at_no_cost):
            decision = course.restarts.after(cause, lasted=ran.seconds, is_left_out=resized)
        if isinstance(decision, GiveUp):
            report = "\n".join(filter(None, (result.report, decision.why)))
            return replace(result, report=report)
        self._wait_for(decision, attempt + 1, cause)
        if self.runner.signals.count():
            return self._result(attempt, replace(ran, hang=None))
        if isinstance(change, MembershipChange):
            self._resize(attempt + 1, course.size, change)
        return None

    def _waits_for_disk(self, error: LaunchError, attempt: int, course: RestartState) -> bool:
        """Wait for the next start; False if no restart is left, or `error` is of another kind.

        The files of an attempt could not be written: a disk that is full may have room later.
        """
        if not isinstance(error.__cause__, OSError):
            return False
        decision = course.restarts.after(None, lasted=0.0)
        if isinstance(decision, GiveUp):
            return False
        self._announce_restart(str(error), decision)
        self._record_restart(attempt + 1, None, str(error), seconds=decision.seconds)
        self._wait(decision)
        return True

    def _unkillable(self, endings: Sequence[WorkerExit]) -> str:
        workers = ", ".join(
            f"worker {each.rank} (process {each.unkillable_pid})" for each in endings
        )
        seconds = self.runner.timeouts.after_sigkill
        return (
            f"Still there {seconds:.0f} s after SIGKILL: {workers}. The kernel does not end a "
            "process that waits for a device or a network file system. The run is not restarted, "
            "because the process may hold GPUs, ports and files. Restart the host, or repair what "
            "the process waits for, and start the same command again."
        )

    def _resize(self, attempt: int, size: ElasticMembership, change: MembershipChange) -> None:
        self.runner.announce(change.why)
        members = tuple(size.members)
        self.runner.events.append(Resize(attempt=attempt, workers=members, cause=change.why))

    def _result(self, attempt: int, ran: AttemptResult) -> RunResult:
        result = resolve_result(
            ran.endings,
            hang=ran.hang,
            seen=ran.seen,
            signal=self.runner.signals.first,
            paths=self.runner.plan.paths(attempt),
        )
        if result.exit_code == RESUME_EXIT_CODE and (
            self.runner.signals.count() or not ran.to_grow
        ):
            self.runner.announce(
                preemption_message(
                    self.runner.plan.run_dir, named=self.runner.options.name is not None
                )
            )
        return result

    def _wait_for(self, decision: RestartDecision, attempt: int, cause: WorkerExit | None) -> None:
        """Say that the worker group restarts, and wait; a signal cuts the wait short."""
        what = (
            "it made no progress" if cause is None else f"worker {cause.rank} failed: {cause.what}"
        )
        self._announce_restart(what, decision)
        self._record_restart(attempt, cause, seconds=decision.seconds)
        self._wait(decision)

    def _announce_restart(self, what: str, decision: RestartDecision) -> None:
        restart = f"restart {decision.number} of {self.runner.options.max_restarts}"
        self.runner.announce(
            f"{what}; {restart} in {decision.seconds:.0f} s" if decision.number else what
        )

    def _wait(self, decision: RestartDecision) -> None:
        until = self.runner.clock.now() + decision.seconds
        while self.runner.clock.now() < until and not self.runner.signals.count():
            self.runner.clock.sleep(self.runner.timeouts.poll_interval)

    def _record_restart(
        self,
        attempt: int,
        cause: WorkerExit | None,
        otherwise: str = "no progress",
        *,
        seconds: float,
    ) -> None:
        rank, what = (cause.rank, cause.what) if cause else (None, otherwise)
        self.runner.events.append(Restart(attempt=attempt, rank=rank, cause=what, seconds=seconds))


@dataclass(frozen=True, kw_only=True)
class AttemptResult:
    """One attempt.

    Attributes:
        endings: how each worker ended.
        hang: who was where when it made no progress; None where it did not.
        seen: who was where when a collective had timed out; None where none had.
        to_grow: whether it was asked to stop, so as to grow.
        seconds: how long it took.
    """

    endings: Sequence[WorkerExit]
    hang: str | None
    seen: str | None
    to_grow: bool
    seconds: float


@dataclass(frozen=True, kw_only=True)
class WorkerGroupRunner:
    """Starts a run's worker groups, one after the other.

    Attributes:
        options: what was asked.
        plan: how the worker group is started.
        events: records what happens.
        signals: those that reached the launcher.
        clock: the time.
        output: where the workers' lines are shown.
        terminal: whether that is a terminal.
        timeouts: how long to wait for what.
        data_servers: read data for the workers, where asked.
        nodes: where workers are started.
        on_each_poll: done at each look at the workers.
        announce: says something to the user.
    """

    options: RunOptions
    plan: WorkerGroupSpec
    events: EventLog
    signals: SignalCatcher
    clock: Clock
    output: Showing
    terminal: bool
    timeouts: Timeouts
    announce: Callable[[str], None]
    data_servers: DataServers
    nodes: Sequence[Node]
    on_each_poll: Callable[[], None] = lambda: None

    def run(self, attempt: int, course: RestartState) -> AttemptResult:
        """Start the worker group once and wait for its end."""
        began = self.clock.now()
        plan = self.plan.of(course.size.members)
        node_ranks = [plan.node_of(rank) for rank in range(len(plan.resources))]
        exchange_ranks = node_ranks[:1] if plan.compares else []
        found = (
            allocate_addresses(self.nodes, [*node_ranks, *exchange_ranks])
            if plan.is_networked
            else ()
        )
        addresses, desync_address = found[: len(node_ranks)], "".join(found[len(node_ranks) :])
        key = secrets.token_hex(16) if desync_address else ""
        specs = worker_specs(
            plan,
            attempt=attempt,
            addresses=addresses,
            desync_address=desync_address,
            desync_key=key,
        )
        paths = self.plan.paths(attempt)
        tee = Tee(
            {rank: paths.log(rank) for rank in ranks_to_show(self.options.tee, len(specs))},
            self.output,
            terminal=self.terminal,
        )
        _write_attempt(paths.directory, specs)
        start = partial(self._start, plan)
        handles = start_worker_group(specs, start)
        if self.options.max_restarts:
            # Now, at low priority, so that it does not slow the start.
            for node, spec in {plan.node_of(spec.rank): spec for spec in specs}.items():
                self.nodes[node].prewarm(spec, plan.resources[spec.rank].gpus)
        watch = HangDetector(
            timeout=self.options.hang_timeout,
            handles=handles,
            paths=paths,
            now=self.clock.now,
            sleep=self.clock.sleep,
            on_stall=partial(self._report_stall, attempt),
        )
        growth = ScaleUpMonitor(
            partial(self._may_grow, course.size), self.plan.run_dir, now=self.clock.now
        )
        supervisor = Supervisor(
            handles=handles,
            failure_of=lambda rank: FailureRecord.read(paths.error(rank)),
            clock=self.clock,
            interrupted=self.signals.count,
            may_save=self._may_save,
            wants_save=growth.wants_save,
            is_stuck=watch.is_stuck,
            on_poll=partial(self._on_poll, tee),
            on_ask=lambda: self._ask(attempt),
            on_timeout=watch.capture_status,
            on_end=lambda ending: self.events.append(ending.to_event(attempt)),
            ps_tasks=frozenset(spec.rank for spec in specs if spec.serves),
            replacement=Replacements(
                specs,
                start=partial(self._restart_workers, start),
                on_replaced=partial(self._report_replaced, attempt),
                restarts=course.restarts,
                now=self.clock.now,
            ),
            timeouts=self.timeouts,
        )
        try:
            self._record_start(attempt, handles)
            endings = supervisor.run()
            return AttemptResult(
                endings=endings,
                hang=watch.verdict,
                seen=watch.seen,
                to_grow=growth.wanted,
                seconds=self.clock.now() - began,
            )
        finally:
            tee.close()
            remove_scratch(h.pid for h in handles.values() if not isinstance(h, RemoteWorker))

    def _record_start(self, attempt: int, handles: Mapping[int, WorkerHandle]) -> None:
        here = socket.gethostname()
        workers = [
            {
                "rank": rank,
                "pid": handle.pid,
                "host": getattr(handle, "host", here),
                "forked": isinstance(handle, ForkedWorker),
            }
            for rank, handle in sorted(handles.items())
        ]
        self.events.append(AttemptStart(attempt=attempt, workers=tuple(workers)))

    def _on_poll(self, tee: Tee) -> None:
        tee.poll()
        self.data_servers.poll()
        self.on_each_poll()

    def shutdown_pool(self) -> None:
        """End the pre-forked processes."""
        for node in self.nodes:
            node.shutdown_pool()

    def _start(self, plan: WorkerGroupSpec, spec: WorkerSpec) -> WorkerHandle:
        return self.nodes[plan.node_of(spec.rank)].start(spec, plan.resources[spec.rank].gpus)

    def _report_stall(self, attempt: int, line: str) -> None:
        self.announce(line)
        self.events.append(Stall(attempt=attempt, message=line))

    def _may_grow(self, size: ElasticMembership, now: float) -> bool:
        return size.may_grow(now) and not any(node.is_lost for node in self.nodes)

    def _may_save(self) -> bool:
        return self.signals.first in SIGNALS

    def _ask(self, attempt: int) -> None:
        if self.signals.first is None:
            self.announce("asking all workers to save and stop, so that more can join them")
            return
        number = signal.Signals(self.signals.first)
        self.events.append(PreemptionEvent(attempt=attempt, signal=number.name))
        self.announce(
            f"{number.name}: asking all workers to save and stop, within "
            f"{self.timeouts.checkpoint:g} s"
        )

    def _restart_workers(
        self, start: Callable[[WorkerSpec], WorkerHandle], spec: WorkerSpec
    ) -> WorkerHandle:
        """Start a worker in the place of one that failed; what that one wrote down is its own."""
        self.plan.paths(spec.attempt).error(spec.rank).unlink(missing_ok=True)
        return start(spec)

    def _report_replaced(self, attempt: int, ending: WorkerExit, successor: WorkerHandle) -> None:
        self.announce(f"worker {ending.rank} failed: {ending.what}; starting a replacement")
        self.events.append(
            WorkerReplaced(attempt=attempt, rank=ending.rank, cause=ending.what, pid=successor.pid)
        )


def _write_attempt(directory: Path, specs: Sequence[WorkerSpec]) -> None:
    """Make an attempt's directory, with the specs of its workers.

    Raises:
        UnavailableError: it cannot be written.
    """
    shown = [asdict(replace(spec, desync_key="")) for spec in specs]  # others may read the file
    try:
        directory.mkdir(mode=PRIVATE_DIR, parents=True, exist_ok=True)
        (directory / "cluster.json").write_text(json.dumps(shown, indent=2) + "\n")
    except OSError as error:
        raise UnavailableError(
            f"Cannot write the files of the workers in {directory}: {error.strerror or error}. "
            "Make room there, or give another --run-dir."
        ) from error
