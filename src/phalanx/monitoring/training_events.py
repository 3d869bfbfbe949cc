"""The records of one `fit`, which `phalanx run` writes without being asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phalanx.monitoring.event_log import EventLog
from phalanx.monitoring.events import EarlyStop, EpochMetrics, FitEnd, FitStart, TrainMetrics
from phalanx.monitoring.phase_tracker import record_moment
from phalanx.monitoring.throughput import ThroughputNumbers

SECONDS_BETWEEN_STEPS = 0.9
"""Between two `step` records, at least."""


class TrainingEvents:
    """Writes down how a `fit` goes; the chief what is global, every worker its own part."""

    def __init__(
        self, event_log: EventLog, *, fit: int, is_chief: bool, clock: Callable[[], float]
    ) -> None:
        """Get ready; nothing is written yet.

        Args:
            event_log: where the events go.
            fit: the number of this `fit` in its process, from 0.
            is_chief: whether this worker writes what is the same on all.
            clock: seconds, increasing.
        """
        self._event_log = event_log
        self._fit = fit
        self._is_chief = is_chief
        self._clock = clock
        self._started = self._epoch_started = clock()
        self._next_step = self._started
        self._has_trained = False

    def start(
        self, model: Any, *, epochs: int, initial_epoch: int, steps: int | None, step: int
    ) -> None:
        """The `fit` starts.

        Args:
            model: the model.
            epochs: where it ends.
            initial_epoch: where it begins.
            steps: of an epoch; None where that is unknown.
            step: the steps trained before.
        """
        optimizer = getattr(model, "optimizer", None)
        self._event_log.append(
            FitStart(
                fit=self._fit,
                epochs=epochs,
                initial_epoch=initial_epoch,
                steps=steps,
                model=model.name,
                parameters=model.count_params() if model.built else None,
                optimizer=None if optimizer is None else type(optimizer).__name__,
                step=step,
            )
        )
        record_moment(self._event_log)

    def trained(self) -> None:
        """Steps are done; the first ones end the time that starting takes."""
        if not self._has_trained:
            self._has_trained = True
            record_moment(self._event_log)

    def epoch_begins(self) -> None:
        """An epoch's seconds count from here."""
        self._epoch_started = self._clock()

    def metrics(
        self, logs: Mapping[str, Any], learning_rate: Callable[[], float | None], **where: int
    ) -> None:
        """Metrics were read; written about once a second at most."""
        now = self._clock()
        if self._is_chief and now >= self._next_step:
            self._next_step = now + SECONDS_BETWEEN_STEPS
            rate = learning_rate()
            self._event_log.append(TrainMetrics(**where, logs=dict(logs), learning_rate=rate))

    def epoch(self, logs: Mapping[str, Any], learning_rate: float | None, **where: int) -> None:
        """An epoch ended."""
        if self._is_chief:
            seconds = self._clock() - self._epoch_started
            self._event_log.append(
                EpochMetrics(**where, logs=dict(logs), learning_rate=learning_rate, seconds=seconds)
            )

    def stop(self, reason: str, **where: int) -> None:
        """Training ends before its last epoch."""
        if self._is_chief:
            self._event_log.append(EarlyStop(**where, reason=reason))

    def throughput(self, numbers: ThroughputNumbers) -> None:
        """How fast this worker's last steps were."""
        self._event_log.append(numbers.to_event())

    def end(self, *, step: int | None, epoch: int | None) -> None:
        """The `fit` ended well."""
        seconds = self._clock() - self._started
        record_moment(self._event_log)
        self._event_log.append(FitEnd(fit=self._fit, step=step, epoch=epoch, seconds=seconds))
