"""Which records count after a restart: those of the steps that the final state went through.

A new attempt takes up at a checkpoint, behind where the one before had come. From its first
step on it replaces what came before; the steps that were done twice are "lost" the first time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from phalanx.monitoring.events import EpochMetrics, Gradients, TrainMetrics
from phalanx.report.run_data import RunData

P = TypeVar("P", bound=TrainMetrics | EpochMetrics | Gradients)


@dataclass(frozen=True, kw_only=True)
class Lineage(Generic[P]):
    """Points in the order of their steps: those that count, and those that a restart undid."""

    kept: tuple[P, ...]
    lost: tuple[P, ...]


class Resumptions:
    """Where each attempt took each `fit` up again."""

    def __init__(self, data: RunData) -> None:
        self._first: dict[tuple[int, int], int] = {}
        points: list[TrainMetrics | EpochMetrics] = [*data.of(TrainMetrics), *data.of(EpochMetrics)]
        for point in points:
            key = (point.fit or 0, point.attempt)
            self._first[key] = min(self._first.get(key, point.step), point.step)

    def undone_from(self, fit: int, attempt: int) -> float:
        """The step from which a later attempt replaced this one's; infinity for none."""
        later = [s for (f, a), s in self._first.items() if f == fit and a > attempt]
        return min(later, default=math.inf)


def lineage(points: Iterable[P], resumed: Resumptions) -> Lineage[P]:
    """Part the points of one curve; of several at the same step of a `fit` the last counts."""
    last: dict[tuple[int, int], P] = {}
    lost: list[P] = []
    for point in sorted(points, key=lambda each: each.attempt):
        fit = point.fit or 0
        if point.step >= resumed.undone_from(fit, point.attempt):
            lost.append(point)
        else:
            last[fit, point.step] = point
    kept = [last[key] for key in sorted(last)]
    return Lineage(kept=tuple(kept), lost=tuple(lost))
