"""From events to metrics and facts: what a tracker shows of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from phalanx.cluster.exit_codes import RESUME_EXIT_CODE
from phalanx.monitoring.events import (
    AttemptStart,
    CheckpointEvent,
    EarlyStop,
    EpochMetrics,
    Event,
    FitStart,
    Gradients,
    PreemptionEvent,
    Resize,
    Restart,
    RunEnd,
    RunStart,
    Straggler,
    ThroughputEvent,
    TrainMetrics,
    WorkerExitEvent,
)
from phalanx.trackers.protocol import Point, Status, Value

TOTAL = "global"
"""The run name of the gradients of the global batch, as in `callbacks/gradient_logger.py`."""


@dataclass(kw_only=True)
class RunMetrics:
    """Takes events, and gives each metric of each step once.

    Steps that a restart repeats were sent before: of each series only steps beyond the last one
    are new. An attempt that resumes repeats them with the same values. So the events can be read
    from the start again at any time, and nothing is sent twice.

    Attributes:
        last_steps: the last step of each series.
        prefixes: of each call of `fit` by its number: the prefix of its metrics. It is empty,
            unless the steps of that `fit` start again, as those of another model do.
        facts: what is known about the run as a whole.
        end: how the run ended; None while it runs.
        models: the model files that were saved, the last one last.
    """

    last_steps: dict[str, int] = field(default_factory=dict)
    prefixes: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Value] = field(default_factory=dict)
    end: RunEnd | None = None
    models: dict[str, None] = field(default_factory=dict)
    _reached: dict[tuple[int, int], int] = field(default_factory=dict)  # (attempt, fit): step
    _restarts: int = 0

    @property
    def status(self) -> Status:
        """How the run is."""
        if self.end is None:
            return "running"
        code = self.end.exit_code
        if code == 0:
            return "finished"
        is_signal = code is not None and code > 128 and not self.end.report
        return "stopped" if code == RESUME_EXIT_CODE or is_signal else "failed"

    def take(self, events: Iterable[Event]) -> list[Point]:
        """The metrics among the events that are new, in the order of their time."""
        found = []
        for event in sorted(events, key=lambda each: each.t):
            self._take_fact(event)
            self._take_position(event)
            step = getattr(event, "step", None)
            if not isinstance(step, int):
                continue
            prefix = "" if event.fit is None else self.prefixes.get(str(event.fit), "")
            values = {}
            for name, value in _metrics(event):
                series = prefix + name
                if step > self.last_steps.get(series, -1):
                    self.last_steps[series] = step
                    values[series] = value
            if values:
                found.append(Point(step=step, time=event.t, values=values))
        return found

    def _take_position(self, event: Event) -> None:
        """Decide the prefix of each `fit` at its start: before any of its metrics."""
        if event.fit is None:
            return
        key = str(event.fit)
        if isinstance(event, FitStart) and key not in self.prefixes:
            before = self._reached.get((event.attempt, event.fit - 1), 0)
            starts_again = event.step is not None and event.step < before
            last = self.prefixes.get(str(event.fit - 1), "")
            self.prefixes[key] = f"fit_{key}/" if starts_again else last
        step = getattr(event, "step", None)
        if isinstance(step, int):
            place = (event.attempt, event.fit)
            self._reached[place] = max(step, self._reached.get(place, 0))

    def _take_fact(self, event: Event) -> None:
        match event:
            case RunStart():
                self.end = None  # A run that had ended is resumed.
                self.facts["status"] = "running"
            case RunEnd():
                self.end = event
                self.facts["status"] = self.status
                if event.exit_code is not None:
                    self.facts["exit_code"] = event.exit_code
                if event.report:
                    self.facts["report"] = event.report
            case AttemptStart():
                self.facts["attempts"] = event.attempt + 1
            case Restart():
                self._restarts += 1
                who = "" if event.rank is None else f"worker {event.rank}: "
                self.facts["restarts"] = self._restarts
                self.facts[f"restart_{self._restarts}"] = f"{who}{event.cause or 'unknown cause'}"
            case WorkerExitEvent() if event.is_failure:
                self.facts["last_failure"] = f"worker {event.rank}: {event.summary or event.code}"
            case Resize():
                self.facts["workers_now"] = len(event.workers)
            case PreemptionEvent():
                self.facts["preempted_by"] = event.signal or "a signal"
            case FitStart() if event.writer_rank == 0:
                for name in ("model", "parameters", "optimizer", "epochs"):
                    if (value := getattr(event, name)) is not None:
                        self.facts[name] = value
            case Straggler():
                state = "recovered" if event.resolved else f"{event.factor:.1f} times slower"
                self.facts["straggler"] = f"worker {event.rank}: {state} at step {event.step}"
            case EarlyStop():
                self.facts["early_stop"] = event.reason or "stopped early"
            case CheckpointEvent() if event.path is not None:
                self.facts["last_checkpoint"] = event.path
                if event.path.endswith(_MODEL_FILES):
                    self.models.pop(event.path, None)
                    self.models[event.path] = None


_MODEL_FILES = (".keras", ".h5")


def _metrics(event: Event) -> Iterator[tuple[str, float]]:
    match event:
        case TrainMetrics():
            yield from _named("train/", event.logs)
            if event.learning_rate is not None:
                yield "train/learning_rate", event.learning_rate
        case EpochMetrics():
            yield from _named("epoch/", event.logs)
            yield "epoch/epoch", float(event.epoch)
            if event.seconds is not None:
                yield "epoch/seconds", event.seconds
        case ThroughputEvent():
            yield from _throughput(event)
        case Gradients(run=run) if run == TOTAL:
            yield from (item for item in event.values.items() if item[0].startswith(_OF_TOTAL))
        case Gradients():
            worker = event.run.replace("-", "_")
            yield from (
                (f"{worker}/{tag}", value)
                for tag, value in event.values.items()
                if tag.startswith("gradients/")
            )
        case CheckpointEvent():
            for name in ("seconds", "blocking_seconds", "bytes"):
                if (value := getattr(event, name)) is not None:
                    yield f"checkpoint/{name}", value


_OF_TOTAL = ("gradients/", "gradient_norm/", "update_ratio/")


def _throughput(event: ThroughputEvent) -> Iterator[tuple[str, float]]:
    worker = f"worker_{event.writer_rank or 0}/"
    if event.samples_per_second is not None and not event.writer_rank:
        yield "throughput/samples_per_second", event.samples_per_second
    yield from _named(f"{worker}step_seconds/", event.step_seconds)
    yield from _named(f"{worker}time_fraction/", event.time_fractions)
    if event.memory_bytes is not None:
        yield f"{worker}memory_bytes", event.memory_bytes


def _named(prefix: str, numbers: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    for name, value in numbers.items():
        yield prefix + name, value
