"""What this process is doing, and for how long it has done what: one pulse a process.

The loops of training say what they begin; the heartbeat reads it from a thread of its own,
and the measure of throughput takes its shares of time from it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self, get_args

from phalanx.monitoring.event_log import EventLog
from phalanx.monitoring.events import HeartbeatEvent
from phalanx.monitoring.memory import resident_bytes

Phase = Literal[
    "start", "input", "compute", "callbacks", "checkpoint", "validation", "idle"
]  # `docs/records.md` says them to readers
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, kw_only=True)
class PhaseSnapshot:
    """What a process was doing at one moment.

    Attributes:
        phase: what it does.
        phase_number: counts the phases that it began, from 1; one that begins again counts again.
        seconds: for how long it has done that.
        step: the last step trained, counted from 1; None before the first `fit`.
        epoch: the epoch, counted from 0; None before the first `fit`.
        totals: seconds in each phase so far, this one included; phases without time are left out.
    """

    phase: Phase
    phase_number: int
    seconds: float
    step: int | None
    epoch: int | None
    totals: Mapping[Phase, float]

    def to_event(self, memory_bytes: int) -> HeartbeatEvent:
        """The event that records this moment."""
        return HeartbeatEvent(
            phase=self.phase,
            phase_number=self.phase_number,
            phase_seconds=round(self.seconds, 3),
            step=self.step,
            epoch=self.epoch,
            memory_bytes=memory_bytes,
            phase_totals={phase: round(seconds, 3) for phase, seconds in self.totals.items()},
        )


class PhaseListener(Protocol):
    """Receives all that a tracker receives, in the same thread."""

    def phase(self, name: str) -> None:
        """A phase begins."""

    def at(self, step: int | None, epoch: int | None) -> None:
        """How far training is; what is None stays as it was."""


class PhaseTracker:
    """Holds the phase a process is in, and adds up how long each phase lasted.

    One thread says what is done; any thread may ask.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin in the phase "start".

        Args:
            clock: seconds, increasing.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._phase: Phase = "start"
        self._number = 1
        self._since = clock()
        self._totals: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self._step: int | None = None
        self._epoch: int | None = None
        self._listeners: list[Callable[[int], None]] = []
        self._followers: list[PhaseListener] = []

    def enter(self, phase: Phase) -> Phase:
        """Begin `phase`, which ends the one before; returns that one."""
        with self._lock:
            now = self._clock()
            before = self._phase
            self._totals[before] += now - self._since
            self._phase, self._since = phase, now
            self._number += 1
        for follower in self._followers:
            follower.phase(phase)
        return before

    @contextmanager
    def during(self, phase: Phase, *, instead_of: Phase | None = None) -> Iterator[None]:
        """Be in `phase` for the length of a block, then in the one before again.

        Args:
            phase: the phase.
            instead_of: change nothing unless this is the phase now; None for any.
        """
        if instead_of is not None and self._phase != instead_of:
            yield
            return
        before = self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def at(self, *, step: int | None = None, epoch: int | None = None) -> None:
        """Say how far training is; what is None stays as it was."""
        with self._lock:
            self._step = self._step if step is None else step
            self._epoch = self._epoch if epoch is None else epoch
        for follower in self._followers:
            follower.at(step, epoch)
        if step is not None:
            for listener in self._listeners:
                listener(step)  # what it raises ends the training, as if the step had raised

    def listen(self, listener: Callable[[int], None]) -> None:
        """Have `listener` called with the last step trained, in the thread that trains.

        It is called where a `fit` begins, with the steps trained before, and after each step.
        """
        self._listeners.append(listener)

    def follow(self, follower: PhaseListener) -> None:
        """Pass on to `follower` what this receives."""
        self._followers.append(follower)

    def beat(self) -> PhaseSnapshot:
        """What is done now."""
        with self._lock:
            seconds = self._clock() - self._since
            return PhaseSnapshot(
                phase=self._phase,
                phase_number=self._number,
                seconds=seconds,
                step=self._step,
                epoch=self._epoch,
                totals={name: spent for name, spent in self._all(seconds).items() if spent > 0},
            )

    def totals(self) -> dict[Phase, float]:
        """Seconds spent in each phase so far, the one under way included."""
        with self._lock:
            return self._all(self._clock() - self._since)

    def _all(self, seconds: float) -> dict[Phase, float]:
        """The totals when the phase under way has lasted for `seconds`; call it with the lock."""
        totals = dict(self._totals)
        totals[self._phase] += seconds
        return totals


phase_tracker = PhaseTracker()
"""This process's own."""


# The thread touches neither TensorFlow nor Keras, so it beats while the main thread compiles,
# computes or waits for a peer. A heartbeat that stops means that the process has ended or that
# something holds Python's lock.

SECONDS = 2.0
"""Between two beats."""


class HeartbeatWriter:
    """Writes `heartbeat` records until it is closed or the process ends."""

    def __init__(
        self,
        event_log: EventLog,
        phase_tracker: PhaseTracker,
        *,
        wait: Callable[[float], bool] | None = None,
        memory: Callable[[], int] = resident_bytes,
    ) -> None:
        """Get ready; `start` begins.

        Args:
            event_log: where the events go.
            phase_tracker: what the process is doing.
            wait: lets so many seconds pass; True when no further beat is wanted.
            memory: the bytes that the process holds.
        """
        self._event_log = event_log
        self._phase_tracker = phase_tracker
        self._closed = threading.Event()
        self._wait = wait or self._closed.wait
        self._memory = memory
        self._thread = threading.Thread(target=self._run, name="phalanx-heartbeat", daemon=True)

    def start(self) -> Self:
        """Write the first beat now, the others from the thread."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Write no more."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(timeout=SECONDS)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        self._beat()
        while not self._wait(SECONDS):
            self._beat()

    def _beat(self) -> None:
        memory_bytes = self._memory()
        self._event_log.append_moment(lambda: self._phase_tracker.beat().to_event(memory_bytes))


def record_moment(event_log: EventLog | None, *, tracker: PhaseTracker = phase_tracker) -> None:
    """Write a `heartbeat` now, if events are written: a part of the run's time ends or begins."""
    if event_log is not None:
        memory_bytes = resident_bytes()
        event_log.append_moment(lambda: tracker.beat().to_event(memory_bytes))
