"""A run's curves: points by step and by time, ready to be drawn, compared or written down."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from phalanx.monitoring.events import (
    EpochMetrics,
    FitStart,
    Gradients,
    ThroughputEvent,
    TrainMetrics,
)
from phalanx.report.lineage import Resumptions, lineage
from phalanx.report.run_data import RunData

P = TypeVar("P", bound=TrainMetrics | EpochMetrics | Gradients | ThroughputEvent)

TOTAL = "global"
"""The run name under which the gradients of the global batch are recorded."""

VALIDATION = "val_"


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a figure.

    Attributes:
        name: what it is.
        of: which metric, worker or tag it shows.
        kind: "step", "epoch", "validation" or "lost" for curves of metrics.
        steps: the optimizer's iterations.
        seconds: since the run began.
        values: one for each point; may hold NaN and infinities.
    """

    name: str
    of: str
    kind: str
    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def not_finite(self) -> tuple[int, ...]:
        """The steps at which the value is not finite."""
        pairs = zip(self.steps, self.values, strict=True)
        return tuple(step for step, value in pairs if not math.isfinite(value))


def metrics(data: RunData) -> list[Series]:
    """The losses and metrics: each reading, each epoch, validation, and what a restart undid."""
    resumed = Resumptions(data)
    steps = lineage(data.of(TrainMetrics), resumed)
    epochs = lineage(data.of(EpochMetrics), resumed)
    names = _names(data)
    found: list[Series] = []
    for name in names:
        get = _log(name)
        found += _by_fit(data, steps.kept, get, name="train", of=name, kind="step")
        found += _by_fit(data, epochs.kept, get, name="train, epoch", of=name, kind="epoch")
        validation = _log(VALIDATION + name)
        found += _by_fit(
            data, epochs.kept, validation, name="validation", of=name, kind="validation"
        )
        found += _by_fit(data, steps.lost, get, name="undone by a restart", of=name, kind="lost")
    return found


def learning_rate(data: RunData) -> list[Series]:
    """The learning rate, by readings and by epochs."""
    resumed = Resumptions(data)
    kept: list[TrainMetrics | EpochMetrics] = [
        *lineage(data.of(TrainMetrics), resumed).kept,
        *lineage(data.of(EpochMetrics), resumed).kept,
    ]
    kept.sort(key=lambda point: (point.fit or 0, point.step))
    return _by_fit(
        data, kept, lambda point: point.learning_rate, name="learning rate", of="", kind="step"
    )


def gradients(data: RunData, tag: str) -> list[Series]:
    """One tag of the gradient logger: each worker's and the total's."""
    kept = lineage_by_run(data)
    found: list[Series] = []
    for run, points in kept.items():
        name = "total" if run == TOTAL else run.replace("-", " ")
        found += _by_fit(data, points, _value(tag), name=name, of=run, kind="step")
    return found


def lineage_by_run(data: RunData) -> dict[str, tuple[Gradients, ...]]:
    """The sampled gradients that count, by the run in TensorBoard that has them too."""
    resumed = Resumptions(data)
    every = data.of(Gradients)
    runs = sorted({point.run for point in every}, key=lambda run: (run == TOTAL, run))
    return {run: lineage([p for p in every if p.run == run], resumed).kept for run in runs}


def throughput(
    data: RunData, rank: int, get: Callable[[ThroughputEvent], float | None], *, name: str
) -> list[Series]:
    """Something of one worker's throughput records, all attempts in the order of time."""
    points = data.of_worker(ThroughputEvent, rank)
    series = _series(data, points, get, name=name, of=f"worker {rank}", kind="step")
    return [series] if series.values else []


def thinned(series: Series, most: int) -> Series:
    """The same curve with about `most` points; of each stretch the lowest and the highest stay."""
    count = len(series.values)
    if count <= most:
        return series
    stretch = math.ceil(2 * count / most)
    kept: set[int] = {0, count - 1}
    for start in range(0, count, stretch):
        part = range(start, min(start + stretch, count))
        finite = [i for i in part if math.isfinite(series.values[i])]
        if not finite:
            kept.add(part[0])
            continue
        kept.add(min(finite, key=lambda i: series.values[i]))
        kept.add(max(finite, key=lambda i: series.values[i]))
    chosen = sorted(kept)
    return replace(
        series,
        steps=tuple(series.steps[i] for i in chosen),
        seconds=tuple(series.seconds[i] for i in chosen),
        values=tuple(series.values[i] for i in chosen),
    )


def _names(data: RunData) -> list[str]:
    """The metrics, the loss first, without "val_"."""
    points: list[TrainMetrics | EpochMetrics] = [*data.of(TrainMetrics), *data.of(EpochMetrics)]
    seen = {name.removeprefix(VALIDATION) for point in points for name in point.logs}
    return sorted(seen, key=lambda name: (name != "loss", "loss" not in name, name))


def _log(name: str) -> Callable[[TrainMetrics | EpochMetrics], float | None]:
    return lambda point: point.logs.get(name)


def _value(tag: str) -> Callable[[Gradients], float | None]:
    return lambda point: point.values.get(tag)


def _by_fit(
    data: RunData,
    points: Iterable[P],
    get: Callable[[P], float | None],
    *,
    name: str,
    of: str,
    kind: str,
) -> list[Series]:
    """One series for each `fit`; its number is named where there are several."""
    parts: dict[int, list[P]] = {}
    for point in points:
        parts.setdefault(point.fit or 0, []).append(point)
    found = []
    for fit, own in sorted(parts.items()):
        full = f"{name}, fit {fit}" if _has_several_fits(data) else name
        found.append(_series(data, own, get, name=full, of=of, kind=kind))
    return [series for series in found if series.values]


def _has_several_fits(data: RunData) -> bool:
    return len({start.fit for start in data.of(FitStart)}) > 1


def _series(
    data: RunData,
    points: Sequence[P],
    get: Callable[[P], float | None],
    *,
    name: str,
    of: str,
    kind: str,
) -> Series:
    known = [(point, value) for point in points if (value := get(point)) is not None]
    return Series(
        name=name,
        of=of,
        kind=kind,
        steps=tuple(point.step for point, _ in known),
        seconds=tuple(data.seconds(point) for point, _ in known),
        values=tuple(value for _, value in known),
    )
