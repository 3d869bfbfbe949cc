"""What is known of a running run at one moment: records go in, a view comes out.

The time is handed in, so the same records can be looked at as of any moment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from phalanx.launcher.worker_status import WorkerProgress
from phalanx.monitoring.events import (
    EpochMetrics,
    Event,
    FitStart,
    Gradients,
    HeartbeatEvent,
    Numbers,
    RunEnd,
    RunStart,
    Straggler,
    ThroughputEvent,
    TrainMetrics,
    WorkerEnd,
    WorkerExitEvent,
    WorkerStart,
)
from phalanx.report.data_quality import format_damage
from phalanx.report.event_formatting import EVENT_STYLES
from phalanx.report.event_reader import RunReader
from phalanx.report.goodput import Goodput, is_about_goodput, measure_goodput
from phalanx.report.run_data import read_run_file
from phalanx.report.series import TOTAL

_GOODPUT_EVENTS_A_SECOND = 2000


@dataclass(kw_only=True)
class LiveWorker:
    """The last report of one worker in its newest attempt.

    `take` changes it in place: a day's heartbeats are taken at once when a page is opened.
    """

    rank: int
    attempt: int
    last_seen: float
    has_started: bool = False
    host: str | None = None
    pid: int | None = None
    phase: str | None = None
    phase_seconds: float | None = None
    step: int | None = None
    epoch: int | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    step_seconds: float | None = None
    gradient_norm: float | None = None
    memory_bytes: float | None = None
    straggler: Straggler | None = None
    end: WorkerEnd | None = None
    exit: WorkerExitEvent | None = None

    def take(self, event: Event) -> None:
        """Add what happened to it."""
        match event:
            case HeartbeatEvent():
                self.has_started = True
                self.phase, self.phase_seconds = event.phase, event.phase_seconds
                self._is_at(event.step, event.epoch)
                self.memory_bytes = event.memory_bytes or self.memory_bytes
            case TrainMetrics() | EpochMetrics():
                self.has_started = True
                self._is_at(event.step, event.epoch)
                self.loss = event.logs.get("loss", self.loss)
            case ThroughputEvent():
                self.has_started = True
                self._is_at(event.step, None)
                self.samples_per_second = event.samples_per_second
                self.step_seconds = event.step_seconds.get("p50")
                self.memory_bytes = event.memory_bytes or self.memory_bytes
            case Gradients() if event.run != TOTAL:
                self.gradient_norm = event.values.get("gradients/norm", self.gradient_norm)
            case WorkerStart():
                self.has_started = True
                self.host, self.pid = event.host, event.pid
            case Straggler():
                self.straggler = None if event.resolved else event
            case WorkerEnd():
                self.end = event
            case WorkerExitEvent():
                self.exit = event

    @property
    def progress(self) -> WorkerProgress | None:
        """Its progress by its last heartbeat; None before the first."""
        if self.phase is None:
            return None
        return WorkerProgress(
            phase=self.phase,
            since=self.last_seen - (self.phase_seconds or 0.0),
            step=self.step,
            epoch=self.epoch,
        )

    def _is_at(self, step: int | None, epoch: int | None) -> None:
        self.step = self.step if step is None else step
        self.epoch = self.epoch if epoch is None else epoch


@dataclass(kw_only=True)
class LiveRun:
    """All events so far. `take` adds to it.

    Attributes:
        began: when the first sign of life came; None before that.
        last_seen: when the last one came.
        fit: the newest call of `fit`.
        logs: the newest reading of the metrics, `batch` where in the epoch that was.
        epoch: the newest epoch that ended.
        total_norm: the norm of the total gradient, when it was last looked at.
        notable: what happened besides, the newest last.
    """

    workers: dict[int, LiveWorker] = field(default_factory=dict)
    began: float | None = None
    last_seen: float | None = None
    attempt: int = 0
    fit: FitStart | None = None
    logs: TrainMetrics | None = None
    epoch: EpochMetrics | None = None
    total_norm: float | None = None
    notable: list[Event] = field(default_factory=list)
    end: RunEnd | None = None
    _of_goodput: list[Event] = field(default_factory=list)
    _goodput: Goodput | None = None
    _goodput_at: float = -math.inf

    def goodput(self) -> Goodput | None:
        """What the time up to the last event was spent on; None before the first `fit`.

        A long run is divided again every few seconds only: its events are many.
        """
        last = max((event.t for event in self._of_goodput), default=0.0)
        pause = len(self._of_goodput) / _GOODPUT_EVENTS_A_SECOND
        if self._of_goodput and (self.end is not None or abs(last - self._goodput_at) > pause):
            self._goodput, self._goodput_at = measure_goodput(self._of_goodput), last
        return self._goodput

    def take(self, events: Iterable[Event], *, seen_at: float | None = None) -> None:
        """Add what was recorded, in any order of files.

        Args:
            events: new ones.
            seen_at: when the reader found them, if it looks repeatedly; None takes the times in the
                records, which are of the writers' clocks.
        """
        for event in sorted(events, key=lambda each: each.t):
            seen = event.t if seen_at is None else seen_at
            self.began = event.t if self.began is None else min(self.began, event.t)
            self.last_seen = seen if self.last_seen is None else max(self.last_seen, seen)
            self.attempt = max(self.attempt, event.attempt)
            if is_about_goodput(event, chief=0):
                self._of_goodput.append(event)
            if type(event) in EVENT_STYLES:
                self.notable.append(event)
            self._take_of_run(event)
            about = (
                event.rank if isinstance(event, (WorkerExitEvent, Straggler)) else event.writer_rank
            )
            for rank in {rank for rank in (about, event.writer_rank) if rank is not None}:
                self._take_of_worker(rank, event, is_about_it=rank == about, seen=seen)

    def limit_last_seen(self, now: float) -> None:
        """Have nothing seen after `now`: a writer's clock that is ahead must not hide a silence."""
        self.last_seen = None if self.last_seen is None else min(self.last_seen, now)
        for worker in self.workers.values():
            worker.last_seen = min(worker.last_seen, now)

    def _take_of_run(self, event: Event) -> None:
        match event:
            case FitStart() if event.writer_rank == min(self.workers, default=event.writer_rank):
                self.fit = event
            case TrainMetrics():
                self.logs = event
            case EpochMetrics():
                self.epoch = event
            case Gradients(run=run) if run == TOTAL:
                self.total_norm = event.values.get("gradients/norm", self.total_norm)
            case RunEnd():
                self.end = event
            case RunStart():
                self.end = None  # A run that had saved and stopped continues.

    def _take_of_worker(self, rank: int, event: Event, *, is_about_it: bool, seen: float) -> None:
        known = self.workers.get(rank)
        if known is None or event.attempt > known.attempt:
            known = LiveWorker(rank=rank, attempt=event.attempt, last_seen=seen)
        elif event.attempt < known.attempt:
            return
        if event.writer_rank == rank:
            known.last_seen = max(known.last_seen, seen)
        if is_about_it:
            known.take(event)
        self.workers[rank] = known


def validation_of(epoch: EpochMetrics | None) -> Numbers:
    """The metrics of the newest validation."""
    logs = epoch.logs if epoch else {}
    return {name: value for name, value in logs.items() if name.startswith("val_")}


class Watched:
    """A run that is looked at again and again.

    Attributes:
        name: its directory's name.
        run: the events so far.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.resolve().name
        self.run = LiveRun()
        self._path = path
        self._reader = RunReader(path)
        self._has_looked = False

    def update(self, now: float | None = None) -> None:
        """Take in what was written since the last look.

        Args:
            now: the time, by the reader's clock, which judges who is silent; None leaves that to
                the times in the records.
        """
        file = read_run_file(self._path)  # Before the records: what they hold is older, or as old.
        self.run.take(self._reader.poll(), seen_at=now if self._has_looked else None)
        if now is not None:
            self.run.limit_last_seen(now)
            self._has_looked = True
        if self.run.end is None and file.exit_code is not None:
            self.run.end = RunEnd(
                t=file.ended or self.run.last_seen or 0.0,
                attempt=self.run.attempt,
                fit=None,
                exit_code=file.exit_code,
                report=file.report,
            )

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.run.end is not None

    @property
    def damages(self) -> list[str]:
        """What could not be read; a line that is still being written is not meant."""
        found = [replace(each, unfinished=False) for each in self._reader.damage]
        return [format_damage(each) for each in found if each.is_any]
