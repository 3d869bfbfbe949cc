"""A run in some numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from phalanx.cluster.exit_codes import RESUME_EXIT_CODE
from phalanx.monitoring.events import (
    CheckpointEvent,
    EarlyStop,
    EpochMetrics,
    FitStart,
    Gradients,
    HeartbeatEvent,
    Restart,
    RunStart,
    Straggler,
    ThroughputEvent,
    TrainMetrics,
    WorkerStart,
)
from phalanx.report.formatting import format_fit
from phalanx.report.lineage import Resumptions, lineage
from phalanx.report.run_data import RunData
from phalanx.report.series import TOTAL

SHARES = ("input", "compute", "communication", "callbacks", "checkpoint")


@dataclass(frozen=True, kw_only=True)
class MetricSummary:
    """One metric over the epochs (over the readings, where no epoch ended)."""

    name: str
    last: float
    lowest: float | None
    lowest_step: int | None
    highest: float | None
    highest_step: int | None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A run in some numbers; None where nothing was recorded.

    Attributes:
        state: "ended well", "saved and stopped", "failed" or "not ended".
        seconds: from its beginning to its end, or to the last sign of life.
        steps: up to where the last attempt came, whether or not its metrics were read there.
        undone_readings: how many readings of metrics a restart undid.
        goodput: the fraction of the run's time that trained.
        time_fractions: where the time of the steps went, over all workers.
        memory_bytes: the most that one worker held.
    """

    name: str
    state: str
    exit_code: int | None
    report: str | None
    began: float
    seconds: float
    workers: int | None
    replicas: int | None
    strategy: str | None
    seed: int | None
    attempts: int
    restarts: tuple[str, ...]
    fits: tuple[str, ...]
    steps: int | None
    epochs: int
    undone_readings: int
    metrics: tuple[MetricSummary, ...]
    samples_per_second: float | None
    step_seconds: float | None
    goodput: float | None
    time_fractions: Mapping[str, float]
    memory_bytes: float | None
    checkpoints: int
    stragglers: tuple[int, ...]
    stopped: str | None
    clip_fraction: float | None
    noise_scale: float | None


def summarize(data: RunData) -> Summary:
    """Put a run into some numbers."""
    resumed = Resumptions(data)
    steps = lineage(data.of(TrainMetrics), resumed)
    epochs = lineage(data.of(EpochMetrics), resumed)
    end = data.end
    rates = data.of(ThroughputEvent)
    chief = [each for each in rates if each.writer_rank == min(data.ranks, default=0)]
    stops = data.of(EarlyStop)
    signs: list[HeartbeatEvent | ThroughputEvent] = [*data.of(HeartbeatEvent), *rates]
    reached = [sign.step for sign in signs if sign.attempt == data.attempts - 1]
    reached += [point.step for point in steps.kept]
    reached += [point.step for point in epochs.kept]
    gradients = [point for point in data.of(Gradients) if point.run == TOTAL]
    replicas = [start.replicas for start in data.of(WorkerStart)]
    return Summary(
        name=data.name,
        state=state_of(data),
        exit_code=end.exit_code if end else None,
        report=end.report if end else None,
        began=data.began,
        seconds=(end.t if end else data.last) - data.began,
        workers=data.workers,
        replicas=replicas[-1] if replicas else None,
        strategy=_strategy(data),
        seed=data.file.seed,
        attempts=data.attempts,
        restarts=tuple(each.cause or "unknown cause" for each in data.of(Restart)),
        fits=tuple(dict.fromkeys(map(format_fit, data.of(FitStart)))),
        steps=max(filter(None, reached), default=None),
        epochs=len(epochs.kept),
        undone_readings=len(steps.lost),
        metrics=tuple(_metrics(epochs.kept or steps.kept)),
        samples_per_second=_ratio((each.samples, each.seconds) for each in chief),
        step_seconds=_ratio((each.seconds, each.steps) for each in chief),
        goodput=data.goodput.goodput if data.goodput is not None else None,
        time_fractions=mean_time_fractions(rates),
        memory_bytes=max(_memories(data), default=None),
        checkpoints=len(data.of(CheckpointEvent)),
        stragglers=tuple(sorted({each.rank for each in data.of(Straggler) if not each.resolved})),
        stopped=(stops[-1].reason or "unknown reason") if stops else None,
        clip_fraction=_last(gradients, "gradients/clip_fraction"),
        noise_scale=_last(gradients, "gradients/noise_scale"),
    )


def state_of(data: RunData) -> str:
    """The state of a run, in two words."""
    if data.end is None:
        return "not ended"
    ends = {0: "ended well", RESUME_EXIT_CODE: "saved and stopped"}
    return ends.get(data.end.exit_code, "failed") if data.end.exit_code is not None else "failed"


def mean_time_fractions(rates: Iterable[ThroughputEvent]) -> dict[str, float]:
    """Means weighted by time; a fraction that was never measured is left out."""
    known = [
        (each.seconds, each.time_fractions)
        for each in rates
        if each.seconds is not None and math.isfinite(each.seconds) and each.time_fractions
    ]
    total = sum(seconds for seconds, _ in known)
    if total <= 0:
        return {}
    names = dict.fromkeys(
        (*SHARES, *(name for _, time_fractions in known for name in time_fractions))
    )
    return {
        name: sum(seconds * time_fractions.get(name, 0.0) for seconds, time_fractions in known)
        / total
        for name in names
        if any(name in time_fractions for _, time_fractions in known)
    }


def _strategy(data: RunData) -> str | None:
    strategies = [start.strategy for start in data.of(RunStart) if start.strategy]
    requested = data.file.options.get("strategy")
    return strategies[0] if strategies else requested if isinstance(requested, str) else None


def _memories(data: RunData) -> Iterable[float]:
    strategies: list[HeartbeatEvent | ThroughputEvent] = [
        *data.of(HeartbeatEvent),
        *data.of(ThroughputEvent),
    ]
    for each in strategies:
        if each.memory_bytes is not None and math.isfinite(each.memory_bytes):
            yield each.memory_bytes


def _metrics(points: Sequence[TrainMetrics | EpochMetrics]) -> Iterable[MetricSummary]:
    for name in dict.fromkeys(name for point in points for name in point.logs):
        known = [(point.logs[name], point.step) for point in points if name in point.logs]
        finite = [pair for pair in known if math.isfinite(pair[0])]
        low = min(finite, default=(None, None))
        high = max(finite, default=(None, None))
        yield MetricSummary(
            name=name,
            last=known[-1][0],
            lowest=low[0],
            lowest_step=low[1],
            highest=high[0],
            highest_step=high[1],
        )


def _ratio(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    known = [(above, below) for above, below in pairs if above is not None and below is not None]
    total = sum(below for _, below in known)
    return sum(above for above, _ in known) / total if total > 0 else None


def _last(points: Sequence[Gradients], tag: str) -> float | None:
    known = [point.values[tag] for point in points if tag in point.values]
    return known[-1] if known else None
