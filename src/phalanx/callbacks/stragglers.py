"""Which worker holds up the others, since when, and why."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from statistics import median
from typing import Literal

from phalanx.callbacks.callback import Callback
from phalanx.callbacks.validation import check_count, check_seconds
from phalanx.errors import ConfigurationError
from phalanx.monitoring.event_log import worker_event_log
from phalanx.monitoring.events import Straggler
from phalanx.monitoring.throughput import ThroughputNumbers, WorkerTimes

_log = logging.getLogger(__name__)

_CAUSES = {
    "input": "it waits for its data",
    "compute": "its step itself takes longer",
    "callbacks": "its callbacks take longer",
}


class StragglerDetector(Callback):
    """Finds workers that are slower than the others, who must wait for them at every step.

    Each worker's own time in a step (input, computing and callbacks, without the wait in the
    all-reduce) is compared with the median of the others'. Who is slow in several windows in
    a row is logged as a warning by the chief, with the part in which it loses most, and
    again when it keeps up. Under `phalanx run` both are `straggler` records too.

    With one worker there is nothing to compare, and nothing happens. Under parameter servers
    no worker waits for anybody; what is compared is the time of a worker's own steps.

    Attributes:
        stragglers: those that are slow now; the same on every worker.
    """

    logs_every_n_steps = 0
    wants_workers = True

    def __init__(
        self, *, factor: float = 1.5, windows: int = 2, every_n_seconds: float = 10.0
    ) -> None:
        """Choose what is slow.

        Args:
            factor: how many times the median of the others' own time.
            windows: in how many windows in a row.
            every_n_seconds: seconds of training in a window, about.

        Raises:
            ConfigurationError: `factor` is not above 1, or a number is not positive.
        """
        super().__init__()
        check_seconds("every_n_seconds", every_n_seconds)
        check_count("windows", windows)
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not factor > 1.0:
            raise ConfigurationError(f"factor must be a number above 1; found {factor!r}.")
        self.every_n_seconds = every_n_seconds
        self._detector = StragglerStatistics(factor=factor, windows=windows)

    @property
    def stragglers(self) -> list[Straggler]:
        """The workers that are slow now, by rank."""
        return self._detector.stragglers

    def on_throughput(self, numbers: ThroughputNumbers, *, is_chief: bool) -> None:
        """Compare the workers in one window; `fit` calls it."""
        first = numbers.step - numbers.steps + 1
        news = self._detector.take(numbers.step, first, numbers.workers)
        for straggler in news if is_chief else []:
            _log.warning("%s", describe(straggler, in_step=not self.cluster.ps_tasks))
            if (event_log := worker_event_log(os.environ)) is not None:
                event_log.append(straggler)


def describe(straggler: Straggler, *, in_step: bool = True) -> str:
    """One line for people; `in_step` says whether workers wait for each other."""
    if straggler.resolved:
        return (
            f"step {straggler.step}: worker {straggler.rank} keeps up again (slow since step "
            f"{straggler.since_step})"
        )
    return (
        f"step {straggler.step}: worker {straggler.rank} is slow since step "
        f"{straggler.since_step}: its own time in a step is {straggler.factor:.1f} times the "
        f"others', as {_CAUSES[straggler.cause]}.{' The others wait for it.' if in_step else ''}"
    )


Cause = Literal["input", "compute", "callbacks"]
CAUSES: tuple[Cause, ...] = ("input", "compute", "callbacks")

LEAST_EXCESS = 0.0005
"""Seconds a step by which a worker must be behind: below, clocks and chance decide."""


class StragglerStatistics:
    """Compares each worker's own time with the median of the others'.

    One slow window proves nothing: a worker is reported after some in a row, and reported
    as resolved after as many in which it keeps up.
    """

    def __init__(self, *, factor: float, windows: int) -> None:
        """Start without suspects.

        Args:
            factor: how many times the others' median is slow.
            windows: in how many windows in a row.
        """
        self._factor = factor
        self._windows = windows
        self._slow_since: dict[int, int] = {}
        self._in_a_row: dict[int, int] = {}
        self._reported: dict[int, Straggler] = {}

    @property
    def stragglers(self) -> list[Straggler]:
        """Those that are slow now, by rank."""
        return [self._reported[rank] for rank in sorted(self._reported)]

    def take(self, step: int, first_step: int, workers: Sequence[WorkerTimes]) -> list[Straggler]:
        """Take one window; gives the stragglers that are new or resolved.

        Args:
            step: the window's last step.
            first_step: its first.
            workers: every worker's own times.
        """
        if len(workers) < 2 or any(worker.busy is None for worker in workers):
            return []
        news = [self._judge(worker, workers, step, first_step) for worker in workers]
        return [straggler for straggler in news if straggler is not None]

    def _judge(
        self, worker: WorkerTimes, workers: Sequence[WorkerTimes], step: int, first_step: int
    ) -> Straggler | None:
        rank = worker.rank
        others = [other for other in workers if other.rank != rank]
        own, usual = worker.busy or 0.0, median(other.busy or 0.0 for other in others)
        factor = own / max(usual, 1e-9)
        is_slow = factor >= self._factor and own - usual >= LEAST_EXCESS
        before = self._reported.get(rank)
        if is_slow == (before is not None):  # nothing new: what was started to count is void
            self._in_a_row[rank] = 0
            self._slow_since.pop(rank, None)
            return None
        self._in_a_row[rank] = self._in_a_row.get(rank, 0) + 1
        if is_slow:
            self._slow_since.setdefault(rank, first_step)
        if self._in_a_row[rank] < self._windows:
            return None
        self._in_a_row[rank] = 0
        if before is not None:
            del self._reported[rank]
            return Straggler(
                rank=rank,
                step=step,
                since_step=before.since_step,
                factor=factor,
                cause=before.cause,
                resolved=True,
            )
        found = Straggler(
            rank=rank,
            step=step,
            since_step=self._slow_since.pop(rank),
            factor=factor,
            cause=_cause(worker, others),
        )
        self._reported[rank] = found
        return found


def _cause(worker: WorkerTimes, others: Sequence[WorkerTimes]) -> Cause:
    def excess(part: Cause) -> float:
        own = getattr(worker, part) or 0.0
        return float(own - median(getattr(other, part) or 0.0 for other in others))

    return max(CAUSES, key=excess)
