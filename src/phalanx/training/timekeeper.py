"""When steps are timed and numbers are due, alike on every worker; the numbers themselves.

The chief decides by its clock. What it decides travels in the notes of a reading of the
metrics, which is a collective anyway, so all workers time the same steps and close their
numbers at the same step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from phalanx.observe.throughput import ThroughputMeter, ThroughputNumbers, WorkerTimes
from phalanx.training.exchange import all_gather_rows, on_any_worker
from phalanx.training.prepare import Stage
from phalanx.training.step import Outputs
from phalanx.training.timed import TimedSteps
from phalanx.worker.memory import resident_bytes
from phalanx.worker.pulse import Phase

SECONDS = 10.0
"""Between two `throughput` records."""

_SPLITS_IN_A_WINDOW = 10
_LEAST_SECONDS_OF_AN_EPOCH = 1.0
_TRACING_PAYS_AFTER = 100
_UNKNOWN = -1


class TimingListener(Protocol):
    """A callback that is told how fast training goes.

    Attributes:
        every_seconds: seconds of training between two times, by the chief's clock.
        wants_workers: whether it needs every worker's times, which takes a small gather.
    """

    every_seconds: float
    wants_workers: bool

    def take_throughput(self, numbers: ThroughputNumbers, *, is_chief: bool) -> None:
        """What the last steps took."""


class Timekeeper:
    """Times the steps of one `fit`, where some worker wants that."""

    def __init__(
        self,
        stage: Stage,
        timed: TimedSteps,
        *,
        listeners: Sequence[TimingListener],
        is_recorded: bool,
        clock: Callable[[], float],
        phases: Callable[[], dict[Phase, float]],
    ) -> None:
        """Agree with the other workers on what is wanted: a small gather.

        Args:
            stage: where the `fit` runs.
            timed: runs the timed steps.
            listeners: the callbacks that want to know.
            is_recorded: whether records are written, as under `phalanx run`.
            clock: seconds, increasing.
            phases: seconds that this process has spent in each phase so far.
        """
        self._stage = stage
        self._timed = timed
        self._clock = clock
        self._every = min([SECONDS, *(each.every_seconds for each in listeners)])
        wants_workers = any(each.wants_workers for each in listeners)
        needs = (is_recorded or bool(listeners), bool(listeners), wants_workers)
        found = on_any_worker(stage.strategy, stage.place, *needs)
        self.is_on, self._wants_communication, self._gathers = found
        self._meter = ThroughputMeter(clock=clock, phases=phases)
        self._begun = clock()
        self._trained = 0
        self._next_split: int | None = None
        self._measures_communication = False
        self._is_due = False

    def begin_epoch(self) -> None:
        """The first step of an epoch begins now."""
        self._meter.begin_epoch()

    def last_step(self, steps: int) -> Callable[[Any], Outputs] | None:
        """What runs the last of the next `steps` steps, if it is to be timed."""
        if self._next_split is None or self._trained + steps < self._next_split:
            return None
        return self._run_timed

    def _run_timed(self, iterator: Any) -> Outputs:
        outputs = self._timed.run(iterator, communication=self._measures_communication)
        if self._timed.traced:
            self._meter.void_lap()
        self._meter.split(self._timed.last)
        return outputs

    def propose(self, *, epoch_ends: bool = False) -> tuple[float, float, float]:
        """What the chief tells the others: steps to the next timed one, and two yes or no.

        These are whether numbers are due, and whether to measure communication from now on.
        """
        if not self.is_on or not self._meter.is_warm:
            return 0.0, 0.0, 0.0
        ahead = 0.0
        if self._next_split is None:
            ahead = self._every / _SPLITS_IN_A_WINDOW / max(self._meter.last_lap, 1e-6)
            ahead = max(1.0, min(float(int(ahead)), 10_000.0))
        is_due = self._meter.seconds >= self._every
        if epoch_ends and self._meter.is_split:
            is_due = is_due or self._meter.seconds >= _LEAST_SECONDS_OF_AN_EPOCH
        return ahead, float(is_due), float(self._wants_communication or self._has_paid())

    def _has_paid(self) -> bool:
        """Whether tracing the step once more is little beside the training so far."""
        passed = self._clock() - self._begun
        return passed >= _TRACING_PAYS_AFTER * self._first_seconds

    def agree(self, ahead: float, is_due: float, communication: float) -> None:
        """Take over what the chief proposed."""
        if ahead > 0:
            self._next_split = self._trained + int(ahead)
        self._is_due = self._is_due or is_due > 0
        self._measures_communication = communication > 0

    def executed(self, steps: int) -> None:
        """So many steps were run; the lap's end follows."""
        if self._trained == 0:
            self._first_seconds = self._clock() - self._begun
        self._trained += steps
        if self._next_split is not None and self._trained >= self._next_split:
            self._next_split = None  # done, or left to who looked at the gradients

    @property
    def needs_reading(self) -> bool:
        """Whether the chief must say when to time the next step; the same on all workers."""
        return self.is_on and self._meter.is_warm and self._next_split is None

    def end_lap(self, steps: int, samples: int | None) -> None:
        """All that belongs to an execution of so many steps has been done."""
        if not self.is_on:
            return
        if samples is None and (batch := self._timed.last.batch) is not None:
            samples = batch * steps
        self._meter.lap(steps, samples)

    def close_if_due(self, step: int) -> ThroughputNumbers | None:
        """The numbers up to `step`, if it is time; workers are asked for theirs."""
        return self.close(step) if self._is_due else None

    def close(self, step: int) -> ThroughputNumbers | None:
        """The numbers up to `step`, if there are any; all workers must close at the same."""
        self._is_due = False
        if self._meter.steps == 0:
            return None
        memory = resident_bytes()
        workers = self._everyones_times(memory) if self._gathers else []
        numbers = self._meter.close(step=step, memory_bytes=memory, workers=workers)
        self._meter.begin_epoch()  # closing belongs to no step
        return numbers

    def _everyones_times(self, memory: int) -> list[WorkerTimes]:
        place = self._stage.place
        mine = self._meter.own_times(place.rank, memory)
        parts = (mine.input, mine.compute, mine.callbacks, mine.communication)
        row = np.array([*map(_nanoseconds, parts), memory], np.int64)
        if not place.has_peers:
            return [mine]
        rows = all_gather_rows(self._stage.strategy, place, row)
        return [_times(rank, row) for rank, row in enumerate(rows)]


def _nanoseconds(seconds: float | None) -> int:
    return _UNKNOWN if seconds is None else math.ceil(seconds * 1e9)


def _times(rank: int, row: Any) -> WorkerTimes:
    *parts, memory = (int(value) for value in row)
    input_, compute, callbacks, communication = (
        None if part == _UNKNOWN else part / 1e9 for part in parts
    )
    return WorkerTimes(
        rank=rank,
        input=input_,
        compute=compute,
        callbacks=callbacks,
        communication=communication,
        memory_bytes=memory,
    )
