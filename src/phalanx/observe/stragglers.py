"""Which worker holds up the others: found from every worker's own times, window by window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from phalanx.observe.throughput import WorkerTimes

Cause = Literal["input", "compute", "callbacks"]
CAUSES: tuple[Cause, ...] = ("input", "compute", "callbacks")

LEAST_EXCESS = 0.0005
"""Seconds a step by which a worker must be behind: below, clocks and chance decide."""


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A worker that is slower than the others, or no longer is.

    Attributes:
        rank: the worker.
        step: where this was found.
        since_step: the first step of the time in which it was slow.
        factor: its own time in a step to the median of the others', when last looked at.
        cause: the part of a step in which it loses most: waiting for its data ("input"),
            the step itself ("compute"), or its callbacks.
        gone: whether it keeps up again.
    """

    rank: int
    step: int
    since_step: int
    factor: float
    cause: Cause
    gone: bool = False


class StragglerDetector:
    """Compares each worker's own time with the median of the others'.

    One slow window proves nothing: a worker is reported after some in a row, and reported
    as gone after as many in which it keeps up.
    """

    def __init__(self, *, factor: float, windows: int) -> None:
        """Begin with nobody under suspicion.

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
        """Look at one window: what is new, found or gone.

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
        if is_slow == (before is not None):  # nothing new: what was begun to count is void
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
                gone=True,
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
