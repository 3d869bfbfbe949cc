"""The workers of a run next to each other, in some numbers each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from phalanx.monitoring.events import (
    HeartbeatEvent,
    Straggler,
    ThroughputEvent,
    WorkerEnd,
    WorkerExitEvent,
    WorkerStart,
)
from phalanx.report.run_data import RunData
from phalanx.report.summary import mean_time_fractions


@dataclass(frozen=True, kw_only=True)
class WorkerSummary:
    """One worker over the whole run; None where nothing was recorded.

    Attributes:
        step_seconds: of a mean step, all that happened between two steps included.
        time_fractions: where that time went.
        memory_bytes: the most that it held.
        straggled: how often it was found to hold up the others.
        ending: how it ended, in words.
    """

    rank: int
    host: str | None
    pid: int | None
    devices: tuple[str, ...]
    step: int | None
    step_seconds: float | None
    slow_step_seconds: float | None
    time_fractions: Mapping[str, float]
    memory_bytes: float | None
    straggled: int
    ending: str


def summarize_workers(data: RunData) -> list[WorkerSummary]:
    """Every worker of which something is known, in the order of ranks."""
    exited = {each.rank for each in data.of(WorkerExitEvent)}
    return [_summarize(data, rank) for rank in sorted(exited.union(data.ranks))]


def _summarize(data: RunData, rank: int) -> WorkerSummary:
    starts = data.of_worker(WorkerStart, rank)
    rates = data.of_worker(ThroughputEvent, rank)
    beats = data.of_worker(HeartbeatEvent, rank)
    signs: list[HeartbeatEvent | ThroughputEvent] = [*rates, *beats]
    steps = [each.step for each in signs if each.step is not None]
    memory = [each.memory_bytes for each in signs if each.memory_bytes is not None]
    slow = [each.step_seconds["p95"] for each in rates if "p95" in each.step_seconds]
    timed = [(e.seconds, e.steps) for e in rates if e.seconds is not None and e.steps is not None]
    count = sum(steps for _, steps in timed)
    return WorkerSummary(
        rank=rank,
        host=starts[-1].host if starts else None,
        pid=starts[-1].pid if starts else None,
        devices=starts[-1].devices if starts else (),
        step=max(steps, default=None),
        step_seconds=sum(seconds for seconds, _ in timed) / count if count else None,
        slow_step_seconds=max(filter(math.isfinite, slow), default=None),
        time_fractions=mean_time_fractions(rates),
        memory_bytes=max(filter(math.isfinite, memory), default=None),
        straggled=sum(each.rank == rank and not each.resolved for each in data.of(Straggler)),
        ending=format_ending(
            [each for each in data.of(WorkerExitEvent) if each.rank == rank],
            data.of_worker(WorkerEnd, rank),
        ),
    )


def format_ending(exits: Iterable[WorkerExitEvent], ends: Iterable[WorkerEnd]) -> str:
    """How a worker ended the last time, by the launcher's word or else by its own."""
    for exit_ in reversed(list(exits)):
        if exit_.has_saved:
            return "saved and stopped"
        if exit_.terminated_by_launcher:
            return "stopped by the launcher"
        if exit_.is_failure:
            return exit_.summary or exit_.signal or f"exit code {exit_.code}"
        return "ended well"
    for end in reversed(list(ends)):
        return "ended well" if end.ok else end.error or "failed"
    return "no end recorded"
