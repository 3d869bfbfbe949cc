"""Watch a worker group until it has ended: one failure, or one signal to us, ends all of it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Protocol

from phalanx.launcher.failure import FailureRecord
from phalanx.launcher.process import WorkerHandle
from phalanx.launcher.root_cause import TIMED_OUT, WorkerExit


class Clock(Protocol):
    """Time, handed in so that tests need none."""

    def now(self) -> float:
        """Seconds, increasing; a difference of two readings is what counts."""

    def sleep(self, seconds: float) -> None:
        """Let that much time pass."""


LONGEST_GAP = 5.0
"""Seconds. A supervisor reads its clock many times a second, unless something stops it."""


class MonotonicClock:
    """The time that passes while this process can run: every deadline counts this.

    It does not follow the wall clock, which may be set at any moment. Between two readings it
    advances by a limited time: a process that was stopped (SIGSTOP, a frozen container, a suspended
    machine) could not see what others did meanwhile, and what it waits for was often stopped too.
    """

    def __init__(
        self,
        *,
        longest_gap: float = LONGEST_GAP,
        read: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Begin at the present time.

        Args:
            longest_gap: seconds that count at most between two readings, besides `sleep`.
            read: seconds, increasing.
            sleep: lets seconds pass.
        """
        self._longest_gap = longest_gap
        self._read = read
        self._sleep = sleep
        self._reading = threading.Lock()
        self._last = self._now = read()

    def now(self) -> float:
        """Seconds, increasing."""
        return self._advance(self._longest_gap)

    def sleep(self, seconds: float) -> None:
        """Let that much time pass."""
        self.now()
        self._sleep(seconds)
        self._advance(seconds + self._longest_gap)

    def _advance(self, limit: float) -> float:
        with self._reading:
            last, self._last = self._last, self._read()
            self._now += min(self._last - last, limit)
            return self._now


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """How long the supervisor waits for what, in seconds.

    Attributes:
        poll_interval: between two looks at the worker group.
        failure_settle: after a failure that looks like a consequence, for its cause to show.
        self_exit: for a worker that wrote down its failure to end on its own.
        checkpoint: for training to save and stop, where a signal asks for it.
        sigkill: between SIGTERM and SIGKILL, after a signal to the launcher.
        sigkill_after_failure: between the two after a failure: a worker that trains takes SIGTERM
            after the request to save, which it cannot do without the one that failed.
        after_sigkill: for the kernel to end a process. It cannot end one that waits for a device or
            a network file system (state D in `ps`).
    """

    poll_interval: float = 0.05
    failure_settle: float = 2.0
    self_exit: float = 10.0
    checkpoint: float = 60.0
    sigkill: float = 3.0
    sigkill_after_failure: float = 0.5
    after_sigkill: float = 60.0


@dataclass(kw_only=True)
class Supervisor:
    """Ends a worker group together.

    Attributes:
        handles: the workers, by rank.
        failure_of: reads what a worker wrote down about its failure.
        clock: the time.
        interrupted: the signals that reached the launcher so far.
        may_save: whether those ask training to save and stop.
        wants_save: whether it should save and stop for another reason.
        on_poll: called at every look, such as to show the workers' output.
        is_stuck: whether the worker group will never end on its own.
        on_timeout: called, while the others still run, where one has waited for too long.
        on_ask: called when the workers are asked to save and stop.
        on_end: called with every worker's end as soon as it is seen.
        ps_tasks: ranks that serve the others for as long as those train, and are ended then.
        replacement: who takes the place of a worker that failed; None where none can.
        timeouts: how long to wait for what.
    """

    handles: MutableMapping[int, WorkerHandle]
    failure_of: Callable[[int], FailureRecord | None]
    clock: Clock
    interrupted: Callable[[], int] = lambda: 0
    may_save: Callable[[], bool] = lambda: False
    wants_save: Callable[[], bool] = lambda: False
    on_poll: Callable[[], None] = lambda: None
    is_stuck: Callable[[], bool] = lambda: False
    on_timeout: Callable[[], None] = lambda: None
    on_ask: Callable[[], None] = lambda: None
    on_end: Callable[[WorkerExit], None] = lambda ending: None
    ps_tasks: frozenset[int] = frozenset()
    replacement: Callable[[WorkerExit], WorkerHandle | None] = lambda ending: None
    timeouts: Timeouts = field(default_factory=Timeouts)

    def __post_init__(self) -> None:
        self._endings: dict[int, WorkerExit] = {}
        self._signalled: set[int] = set()
        self._failed_at: dict[int, float] = {}
        self._requested = False
        self._answered = 0

    def run(self) -> list[WorkerExit]:
        """Wait for the end of every worker and say how each ended, by rank.

        Whatever is raised in between, no worker is left behind.
        """
        try:
            if not self._until_done_or_failed():
                self._stop()
        finally:
            self._kill()
        return [self._endings[rank] for rank in sorted(self._endings)]

    def _until_done_or_failed(self) -> bool:
        """True when all ended well; False at the moment from which the rest must end."""
        end = float("inf")
        while True:
            self._poll()
            if self.interrupted() > self._answered:
                if self._answered or not self.may_save():
                    return False
                self._answered = self.interrupted()
                self._request_checkpoint()
            if not self._requested and self.wants_save():
                self._request_checkpoint()
            if self._is_lost():
                return False
            if self.ps_tasks.issuperset(self._running()):
                return True
            end = min(end, self.clock.now() + self._current_timeouts())
            if self.clock.now() >= end:
                return False
            self.clock.sleep(self.timeouts.poll_interval)

    def _request_checkpoint(self) -> None:
        self.on_ask()
        if self._requested:
            return  # They know; a further signal would end them.
        self._requested = True
        for rank in set(self._running()) - self.ps_tasks:  # those are needed until the end
            self._signalled.add(rank)
            self.handles[rank].ask(signal.SIGTERM)

    def _is_lost(self) -> bool:
        """Whether the rest cannot end well any more."""
        failures = self._failures()
        if any(not ending.is_secondary for ending in failures):
            return True
        if self._requested:  # All must agree on the step at which they stop.
            return any(not (each.is_clean or each.failed) for each in self._endings.values())
        return not failures and bool(self._running()) and self.is_stuck()

    def _current_timeouts(self) -> float:
        """How long the rest may still take, from now on; the least ever said counts."""
        seconds = float("inf")
        if self._failures():
            seconds = self.timeouts.failure_settle
        written = []
        for rank in self._running():
            if (failure := self.failure_of(rank)) is not None:
                self._failed_at.setdefault(rank, self.clock.now())
                written.append(failure)
        failures = [*written, *(each.failure for each in self._failures() if each.failure)]
        if any(failure.type == TIMED_OUT for failure in failures):
            self.on_timeout()
        if written:
            # It said that it failed but does not end: something holds it up.
            seconds = min(seconds, self.timeouts.self_exit)
        if self._requested or any(each.has_saved for each in self._endings.values()):
            seconds = min(seconds, self.timeouts.checkpoint)
        return seconds

    def _stop(self) -> None:
        """SIGTERM to all, then wait; a second signal to the launcher cuts the wait short."""
        signals_so_far = self.interrupted()
        for rank in self._running():
            self._signalled.add(rank)
            self.handles[rank].signal(signal.SIGTERM)
        by_signal = signals_so_far and not self._requested
        wait = self.timeouts.sigkill if by_signal else self.timeouts.sigkill_after_failure
        deadline = self.clock.now() + wait
        while self._running() and self.clock.now() < deadline:
            if self.interrupted() > signals_so_far:
                return
            self.clock.sleep(self.timeouts.poll_interval)
            self._poll()

    def _kill(self) -> None:
        """SIGKILL to whoever is left, and collect them all but those that the kernel keeps."""
        for rank in self._running():
            self._signalled.add(rank)
            self.handles[rank].signal(signal.SIGKILL)
        deadline = self.clock.now() + self.timeouts.after_sigkill
        while self._running() and self.clock.now() < deadline:
            self._poll()
            if self._running():
                self.clock.sleep(self.timeouts.poll_interval)
        for rank in self._running():
            self._endings[rank] = WorkerExit(
                rank=rank,
                exit_code=-signal.SIGKILL,
                at=self.clock.now(),
                terminated_by_launcher=True,
                unkillable_pid=self.handles[rank].pid,
            )

    def _poll(self) -> None:
        for rank in self._running():
            code = self.handles[rank].poll()
            if code is not None:
                ending = WorkerExit(
                    rank=rank,
                    exit_code=code,
                    at=self._failed_at.pop(rank, self.clock.now()),
                    terminated_by_launcher=rank in self._signalled,
                    failure=self.failure_of(rank),
                )
                self.on_end(ending)
                self._terminate(ending)
        self.on_poll()

    def _terminate(self, ending: WorkerExit) -> None:
        successor = self.replacement(ending) if ending.failed and not self._signalled else None
        if successor is None:
            self._endings[ending.rank] = ending
        else:
            self.handles[ending.rank] = successor

    def _running(self) -> list[int]:
        return [rank for rank in self.handles if rank not in self._endings]

    def _failures(self) -> list[WorkerExit]:
        return [ending for ending in self._endings.values() if ending.failed]
