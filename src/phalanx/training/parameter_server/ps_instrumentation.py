"""Reports a `fit` on parameter servers, and how fast it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from phalanx.monitoring.memory import resident_bytes
from phalanx.monitoring.phase_tracker import Phase, phase_tracker
from phalanx.monitoring.throughput import ThroughputMeter, ThroughputNumbers, WorkerTimes
from phalanx.training.instrumentation import FitReporter
from phalanx.training.parameter_server.worker_step import StepResult

SECONDS = 10.0
"""Between two `throughput` records."""
_LEAST_SECONDS_OF_AN_EPOCH = 1.0


class PSStepTimes:
    """How fast the cluster trains, from the steps that the chief receives."""

    def __init__(
        self,
        workers: int,
        *,
        every: float,
        clock: Callable[[], float],
        phases: Callable[[], Mapping[Phase, float]],
    ) -> None:
        """Begin.

        Args:
            workers: how many train.
            every: seconds of training in a window.
            clock: seconds, increasing.
            phases: seconds that the chief has spent in each phase so far.
        """
        self._every = every
        self._meter = ThroughputMeter(clock=clock, phases=phases)
        self._own: list[list[float]] = [[] for _ in range(workers)]

    def begin_epoch(self) -> None:
        """The first step of an epoch begins now."""
        self._meter.begin_epoch()

    def on_results(self, results: Sequence[StepResult]) -> None:
        """These steps were done, and their hooks have run."""
        was_warm = self._meter.is_warm
        self._meter.lap(len(results), sum(result.samples for result in results))
        if not was_warm:  # they were traced meanwhile
            return
        for result in results:
            self._own[result.worker].append(result.seconds)

    def close(self, step: int, *, epoch_ends: bool = False) -> ThroughputNumbers | None:
        """The numbers up to `step`, if it is time."""
        least = _LEAST_SECONDS_OF_AN_EPOCH if epoch_ends else self._every
        if self._meter.seconds < least:
            return None
        workers = [_times(i + 1, own) for i, own in enumerate(self._own)]
        for own in self._own:
            own.clear()
        return self._meter.close(step=step, memory_bytes=resident_bytes(), workers=workers)


def _times(rank: int, seconds: Sequence[float]) -> WorkerTimes:
    """The duration of one worker's steps; nothing more is known of them."""
    return WorkerTimes(
        rank=rank,
        input=None,
        compute=float(np.mean(seconds)) if seconds else None,
        callbacks=None,
        communication=None,
        memory_bytes=None,
    )


class PSInstrumentation(FitReporter):
    """Reports a `fit` on parameter servers, in the chief."""

    def __init__(self, model: Any, callbacks: Any, workers: int) -> None:
        """Nothing is reported yet."""
        super().__init__(model, callbacks, is_chief=True)
        every = min([SECONDS, *(each.every_n_seconds for each in self._listeners)])
        self._times = PSStepTimes(
            workers, every=every, clock=time.monotonic, phases=phase_tracker.totals
        )

    def begin_steps(self) -> None:
        """The first step of an epoch is scheduled."""
        self._times.begin_epoch()

    def on_results(self, results: Sequence[StepResult]) -> None:
        """The hooks of these steps have run."""
        self._times.on_results(results)
        self._report(self._times.close(self._step))

    def end_steps(self) -> None:
        """The last step of an epoch is done."""
        self._report(self._times.close(self._step, epoch_ends=True))
