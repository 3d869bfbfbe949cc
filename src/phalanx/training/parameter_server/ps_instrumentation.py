"""What is seen of a `fit` on servers from beside it: its records, and how fast it goes."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from phalanx.callbacks.fit_protocols import throughput_listeners
from phalanx.monitoring.event_log import worker_event_log
from phalanx.monitoring.memory import resident_bytes
from phalanx.monitoring.phase_tracker import Phase, phase_tracker
from phalanx.monitoring.throughput import ThroughputMeter, ThroughputNumbers, WorkerTimes
from phalanx.monitoring.training_events import TrainingEvents
from phalanx.training.parameter_server.worker_step import StepResult

_fits = itertools.count()
SECONDS = 10.0
"""Between two `throughput` records."""
_LEAST_SECONDS_OF_AN_EPOCH = 1.0


class PSStepTimes:
    """How fast the cluster trains, as the chief hears of its steps."""

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
    """What one worker's steps took; nobody says more of it."""
    return WorkerTimes(
        rank=rank,
        input=None,
        compute=float(np.mean(seconds)) if seconds else None,
        callbacks=None,
        communication=None,
        memory_bytes=None,
    )


class PSThroughput:
    """Takes notes of one `fit` in the chief, for the records and for callbacks that want them."""

    def __init__(self, model: Any, callbacks: Any, workers: int) -> None:
        """Get ready; nothing is written yet."""
        self._model = model
        event_log = worker_event_log(os.environ)
        self._recorder: TrainingEvents | None = None
        if event_log is not None:
            self._recorder = TrainingEvents(
                event_log, fit=next(_fits), is_chief=True, clock=time.monotonic
            )
        self._listeners = throughput_listeners(callbacks.callbacks)
        every = min([SECONDS, *(each.every_n_seconds for each in self._listeners)])
        self._pace = PSStepTimes(
            workers, every=every, clock=time.monotonic, phases=phase_tracker.totals
        )

    def begin(self, *, epochs: int, begin: int, step: int, steps: int | None) -> None:
        """Training begins; what is restored is restored."""
        phase_tracker.at(step=step, epoch=begin)
        if self._recorder is not None:
            self._recorder.start(self._model, epochs=epochs, initial_epoch=begin, steps=steps)

    def begin_epoch(self, epoch: int) -> None:
        """An epoch begins."""
        phase_tracker.at(epoch=epoch)
        if self._recorder is not None:
            self._recorder.epoch_begins()

    def begin_steps(self) -> None:
        """The first step of an epoch is given out."""
        self._pace.begin_epoch()

    def on_results(self, results: Sequence[StepResult], step: int) -> None:
        """Steps were done, up to `step`, and their hooks have run."""
        self._pace.on_results(results)
        self._report(self._pace.close(step))

    def metrics(self, logs: Mapping[str, Any], **where: int) -> None:
        """Metrics were read in the middle of an epoch."""
        if self._recorder is not None:
            self._recorder.metrics(logs, self._rate, **where)

    def end_steps(self, step: int) -> None:
        """The last step of an epoch is done."""
        self._report(self._pace.close(step, epoch_ends=True))

    def end_epoch(self, logs: Mapping[str, Any], **where: int) -> None:
        """An epoch ended, its validation included."""
        if self._recorder is not None:
            self._recorder.epoch(logs, self._rate(), **where)

    def stopped(self, **where: int) -> None:
        """Training ends before its last epoch."""
        if self._recorder is not None:
            self._recorder.stop("model.stop_training was set", **where)

    def end(self, **where: int) -> None:
        """Training has ended well."""
        if self._recorder is not None:
            self._recorder.end(**where)

    def _report(self, numbers: ThroughputNumbers | None) -> None:
        if numbers is None:
            return
        if self._recorder is not None:
            self._recorder.throughput(numbers)
        with phase_tracker.during("callbacks"):
            for listener in self._listeners:
                listener.on_throughput(numbers, is_chief=True)

    def _rate(self) -> float | None:
        rate = getattr(self._model.optimizer, "learning_rate", None)
        return None if rate is None else float(rate.numpy() if hasattr(rate, "numpy") else rate)
