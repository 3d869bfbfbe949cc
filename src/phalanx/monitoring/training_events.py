"""The records of one `fit`, which `phalanx run` writes without being asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phalanx.monitoring.worker_event_log import EventLog

SECONDS_BETWEEN_STEPS = 0.9
"""Between two `step` records, at least."""


class TrainingEvents:
    """Writes down how a `fit` goes; the chief what is global, every worker its own part."""

    def __init__(
        self, journal: EventLog, *, fit: int, is_chief: bool, clock: Callable[[], float]
    ) -> None:
        """Get ready; nothing is written yet.

        Args:
            journal: where the records go.
            fit: the number of this `fit` in its process, from 0.
            is_chief: whether this worker writes what is the same on all.
            clock: seconds, increasing.
        """
        self._journal = journal
        self._fit = fit
        self._is_chief = is_chief
        self._clock = clock
        self._begun = self._epoch_begun = clock()
        self._next_step = self._begun

    def start(self, **fields: Any) -> None:
        """The `fit` begins; `docs/records.md` has the fields."""
        self._journal.write("fit_start", fit=self._fit, **fields)

    def epoch_begins(self) -> None:
        """An epoch's seconds count from here."""
        self._epoch_begun = self._clock()

    def metrics(
        self, logs: Mapping[str, Any], learning_rate: Callable[[], float | None], **where: int
    ) -> None:
        """Metrics were read; written about once a second at most."""
        now = self._clock()
        if self._is_chief and now >= self._next_step:
            self._next_step = now + SECONDS_BETWEEN_STEPS
            rate = learning_rate()
            self._journal.write("step", **where, logs=dict(logs), learning_rate=rate)

    def epoch(self, logs: Mapping[str, Any], learning_rate: float | None, **where: int) -> None:
        """An epoch ended."""
        if self._is_chief:
            seconds = self._clock() - self._epoch_begun
            self._journal.write(
                "epoch", **where, logs=dict(logs), learning_rate=learning_rate, seconds=seconds
            )

    def stop(self, reason: str, **where: int) -> None:
        """Training ends before its last epoch."""
        if self._is_chief:
            self._journal.write("stop", **where, reason=reason)

    def throughput(self, fields: Mapping[str, Any]) -> None:
        """How fast this worker's last steps were."""
        self._journal.write("throughput", **fields)

    def end(self, **where: int | None) -> None:
        """The `fit` ended well."""
        self._journal.write("fit_end", fit=self._fit, **where, seconds=self._clock() - self._begun)
