"""How fast training goes, and where a step's time goes: the numbers, from what was timed.

Nothing here knows of TensorFlow: the loops hand in how long each execution took, and for
some steps how that time was split. `docs/throughput.md` explains the numbers to users.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from phalanx.monitoring.events import ThroughputEvent

WARM_UP = 3
"""Executions at the beginning of a fit that are not counted: tracing, first allocations."""


@dataclass(frozen=True, kw_only=True)
class StepSplit:
    """Where the time of one step went, in seconds; None where that was not measured.

    Attributes:
        input: waiting for the next batch.
        busy: running the step, without waiting in its all-reduce.
        communication: from this worker's gradients being ready to the total being there.
        batch: samples of the global batch.
    """

    input: float | None = None
    busy: float | None = None
    communication: float | None = None
    batch: int | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerTimes:
    """What one worker does in a step, in mean seconds a step; None where not measured.

    Attributes:
        rank: the worker.
        input: waiting for its batch.
        compute: running the step, without waiting in the all-reduce.
        callbacks: in its callbacks, saving included.
        communication: in the all-reduce, where it waits for slower workers too.
        memory_bytes: what its process holds (RSS); None where it is not asked.
    """

    rank: int
    input: float | None
    compute: float | None
    callbacks: float | None
    communication: float | None
    memory_bytes: int | None

    @property
    def busy(self) -> float | None:
        """Its own work in a step: what would remain without waiting for other workers."""
        if self.compute is None:
            return None
        return self.compute + (self.input or 0.0) + (self.callbacks or 0.0)


@dataclass(frozen=True, kw_only=True)
class ThroughputNumbers:
    """How fast training went over some steps, on this worker.

    Attributes:
        step: the last of the steps; steps count from 1, as the optimizer's do.
        steps: how many.
        seconds: how long they took; validation and what traces functions left out.
        samples: samples of all workers together; None where they were not counted.
        samples_per_second: likewise.
        step_seconds: the median ("p50") and the 95th percentile ("p95") of a step.
        time_fractions: of the time, what went to "input", "compute", "communication", "callbacks"
            and "checkpoint"; adds up to 1. None where it was not measured; "compute" is the
            rest, so it holds what was not.
        memory_bytes: what this process holds (RSS).
        workers: every worker's own times, by rank, where they were asked for.
    """

    step: int
    steps: int
    seconds: float
    samples: float | None
    samples_per_second: float | None
    step_seconds: Mapping[str, float]
    time_fractions: Mapping[str, float | None]
    memory_bytes: int
    workers: tuple[WorkerTimes, ...] = field(default=())

    def to_event(self) -> ThroughputEvent:
        """The event that records this window."""
        return ThroughputEvent(**{k: v for k, v in vars(self).items() if k != "workers"})


class ThroughputMeter:
    """Adds up laps, an execution of one step or more each, until it is asked."""

    def __init__(
        self, *, clock: Callable[[], float], phases: Callable[[], Mapping[Any, float]]
    ) -> None:
        """Begin.

        Args:
            clock: seconds, increasing.
            phases: seconds that this process has spent in each phase so far.
        """
        self._clock = clock
        self._phases = phases
        self._laps_to_skip = WARM_UP
        self._is_void = False
        self._lap_began = clock()
        self.last_lap = 0.0
        """Seconds a step of the last lap took."""
        self._restart()

    def begin_epoch(self) -> None:
        """The next lap begins now."""
        self._lap_began = self._clock()

    def discard_interval(self) -> None:
        """The lap under way does something that no later one does: count from after it."""
        self._is_void = True

    def lap(self, steps: int, samples: float | None) -> None:
        """A lap ended: so many steps, with so many samples, None for unknown."""
        now = self._clock()
        seconds, self._lap_began = now - self._lap_began, now
        self.last_lap = seconds / steps
        if self._laps_to_skip or self._is_void:
            self._laps_to_skip = max(0, self._laps_to_skip - 1)
            self._is_void = False
            self._restart()
            return
        self._laps.append((self.last_lap, steps))
        self._steps += steps
        if samples is not None:
            self._samples += samples
            self._counted += steps

    def split(self, split: StepSplit) -> None:
        """One step was timed in its parts."""
        if not self._is_void and not self._laps_to_skip:
            self._splits.append(split)

    @property
    def is_warm(self) -> bool:
        """Whether laps are counted by now."""
        return self._laps_to_skip == 0

    @property
    def is_split(self) -> bool:
        """Whether a step was timed in its parts since the last `close`."""
        return bool(self._splits)

    @property
    def steps(self) -> int:
        """Steps counted since the last `close`."""
        return self._steps

    @property
    def seconds(self) -> float:
        """Seconds since the last `close`, without validation."""
        return self._clock() - self._began - self._in("validation")

    def own_times(self, rank: int, memory_bytes: int) -> WorkerTimes:
        """What this worker did in a step, on average since the last `close`."""
        return WorkerTimes(
            rank=rank,
            input=self._mean("input"),
            compute=self._mean("busy"),
            callbacks=(self._in("callbacks") + self._in("checkpoint")) / max(self._steps, 1),
            communication=self._mean("communication"),
            memory_bytes=memory_bytes,
        )

    def close(
        self, *, step: int, memory_bytes: int, workers: Sequence[WorkerTimes] = ()
    ) -> ThroughputNumbers | None:
        """The numbers since the last time, None if no lap was counted; resets the count."""
        if self._steps == 0:
            self._restart()
            return None
        seconds = self.seconds
        samples = self._samples * self._steps / self._counted if self._counted else None
        each, weights = np.array(self._laps).T
        numbers = ThroughputNumbers(
            step=step,
            steps=self._steps,
            seconds=seconds,
            samples=samples,
            samples_per_second=None if samples is None else samples / max(seconds, 1e-9),
            step_seconds={
                "p50": percentile(each, weights, 0.5),
                "p95": percentile(each, weights, 0.95),
            },
            time_fractions=self._time_fractions(seconds),
            memory_bytes=memory_bytes,
            workers=tuple(workers),
        )
        self._restart()
        return numbers

    def _time_fractions(self, seconds: float) -> dict[str, float | None]:
        spent = {name: self._in(name) for name in ("callbacks", "checkpoint")}
        parts = {name: self._mean(name) for name in ("input", "communication")}
        sampled = {n: None if m is None else m * self._steps for n, m in parts.items()}
        return time_fractions_of(seconds, sampled | spent)

    def _mean(self, part: str) -> float | None:
        found = [getattr(split, part) for split in self._splits]
        known = [value for value in found if value is not None]
        return sum(known) / len(known) if known else None

    def _in(self, phase: str) -> float:
        return self._phases()[phase] - self._phases_then[phase]

    def _restart(self) -> None:
        self._began = self._clock()
        self._phases_then: Mapping[Any, float] = self._phases()
        self._laps: list[tuple[float, int]] = []
        self._splits: list[StepSplit] = []
        self._steps = 0
        self._samples = 0.0
        self._counted = 0


def percentile(values: Any, weights: Any, share: float) -> float:
    """The least value that, with all below it, has at least `share` of the weight."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    index = int(np.searchsorted(reached, share * reached[-1]))
    return float(values[order][min(index, len(order) - 1)])


def time_fractions_of(seconds: float, parts: Mapping[str, float | None]) -> dict[str, float | None]:
    """Each part's share of `seconds`, and "compute" for the rest; they add up to 1.

    What was sampled may seem to be more than there was; then the parts share what there is.
    """
    known = {name: max(0.0, value) for name, value in parts.items() if value is not None}
    total = max(seconds, sum(known.values()), 1e-9)
    time_fractions: dict[str, float | None] = dict.fromkeys(parts)
    time_fractions |= {name: value / total for name, value in known.items()}
    time_fractions["compute"] = max(0.0, 1.0 - sum(value / total for value in known.values()))
    return time_fractions
