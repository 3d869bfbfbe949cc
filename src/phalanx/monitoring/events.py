"""The events of a run: a dataclass each, for who writes one and who reads one.

`docs/records.md` describes each kind. To add an event, add a class here: `EventLog.append` writes
it, `parse_event` reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from phalanx.cluster.exit_codes import RESUME_EXIT_CODE

Record = dict[str, Any]
"""One line of an event log: `v`, `t` (seconds since the epoch), `kind`, and the kind's fields."""

Numbers = Mapping[str, float]
"""Name -> number, possibly not finite; names without a number are left out."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event. A subclass declares the fields of its kind; these are what a record has.

    The attributes below are set when an event is read, from its record and from the file that
    it is in. A writer leaves them out, unless its kind declares one as a field.

    Attributes:
        t: when it was written, seconds since the epoch.
        writer_rank: rank of the worker that wrote it; None for the launcher.
        attempt: the start of the worker group to which it belongs.
        fit: the number of the `fit` in which it was written; None outside of any.
    """

    KIND: ClassVar[str]

    t: float = 0.0
    writer_rank: int | None = None
    attempt: int = 0
    fit: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunStart(Event):
    """The launcher started the run, or resumed it."""

    KIND = "run_start"

    name: str | None
    workers: int | None
    strategy: str | None
    seed: int | None
    argv: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AttemptStart(Event):
    """The worker group was started; a mapping of `workers` has `rank`, `pid`, `host`, `forked`."""

    KIND = "attempt_start"

    attempt: int
    workers: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class WorkerExitEvent(Event):
    """The process of worker `rank` ended."""

    KIND = "worker_exit"

    attempt: int
    rank: int
    code: int | None
    signal: str | None
    terminated_by_launcher: bool
    summary: str | None

    @property
    def is_failure(self) -> bool:
        """Whether it failed first; the launcher terminates the others after that."""
        failed = self.signal is not None or self.code not in (0, RESUME_EXIT_CODE)
        return failed and not self.terminated_by_launcher

    @property
    def has_saved(self) -> bool:
        """Whether it saved a checkpoint and stopped, to be resumed later."""
        return self.code == RESUME_EXIT_CODE


@dataclass(frozen=True, kw_only=True)
class Restart(Event):
    """Attempt `attempt` starts `seconds` from now, because of worker `rank` if it is known."""

    KIND = "restart"

    attempt: int
    rank: int | None
    cause: str | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Resize(Event):
    """The worker group starts with other workers; `workers` are their original ranks."""

    KIND = "resize"

    attempt: int
    workers: tuple[int, ...]
    cause: str | None


@dataclass(frozen=True, kw_only=True)
class Stall(Event):
    """A step takes far longer than usual; `message` names who is waited for."""

    KIND = "stall"

    attempt: int
    message: str


@dataclass(frozen=True, kw_only=True)
class PreemptionEvent(Event):
    """A signal asked training to save and stop."""

    KIND = "preemption"

    attempt: int
    signal: str | None


@dataclass(frozen=True, kw_only=True)
class WorkerReplaced(Event):
    """Worker `rank`, which others do not wait for, was lost; process `pid` takes its place."""

    KIND = "worker_replaced"

    attempt: int
    rank: int
    cause: str | None
    pid: int | None


@dataclass(frozen=True, kw_only=True)
class RunEnd(Event):
    """The launcher ended."""

    KIND = "run_end"

    exit_code: int | None
    report: str | None


@dataclass(frozen=True, kw_only=True)
class WorkerStart(Event):
    """A worker is about to run the script."""

    KIND = "worker_start"

    attempt: int
    rank: int | None
    role: str | None
    workers: int | None
    pid: int | None
    host: str | None
    replicas: int | None
    devices: tuple[str, ...]
    versions: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class WorkerEnd(Event):
    """The script ended on a worker."""

    KIND = "worker_end"

    ok: bool
    error: str | None = None
    step: int | None = None


@dataclass(frozen=True, kw_only=True)
class FitStart(Event):
    """A `fit` starts; its model had been trained for `step` steps before."""

    KIND = "fit_start"

    fit: int | None
    epochs: int | None
    initial_epoch: int | None
    steps: int | None
    model: str | None
    parameters: int | None
    optimizer: str | None
    step: int | None = None


@dataclass(frozen=True, kw_only=True)
class FitEnd(Event):
    """A `fit` ended without an error."""

    KIND = "fit_end"

    fit: int | None
    step: int | None
    epoch: int | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class TrainMetrics(Event):
    """The metrics were read in the middle of an epoch."""

    KIND = "train_metrics"

    step: int
    epoch: int | None
    batch: int | None
    logs: Numbers
    learning_rate: float | None


@dataclass(frozen=True, kw_only=True)
class EpochMetrics(Event):
    """An epoch ended."""

    KIND = "epoch_metrics"

    step: int
    epoch: int
    logs: Numbers
    learning_rate: float | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class HeartbeatEvent(Event):
    """What a worker does at one moment, and the seconds it has spent in each phase so far.

    Written every two seconds, and at moments that limit a part of a run's time: the start and the
    end of a `fit`, the end of its first step, the start of a checkpoint, the end of the script.
    """

    KIND = "heartbeat"

    phase: str | None
    phase_number: int | None
    phase_seconds: float | None
    step: int | None
    epoch: int | None
    memory_bytes: float | None
    phase_totals: Numbers = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ThroughputEvent(Event):
    """How fast the last steps were, and what their time was spent on."""

    KIND = "throughput"

    step: int
    steps: int | None
    seconds: float | None
    samples: float | None
    samples_per_second: float | None
    step_seconds: Numbers
    time_fractions: Numbers
    memory_bytes: float | None


@dataclass(frozen=True, kw_only=True)
class ReductionPlan(Event):
    """How the gradients of a step travel between workers.

    A mapping of `buckets` has `dtype`, `bytes` and `tensors`; one of `sparse` has `variable` and
    `travels` ("rows", "summed_rows" or "dense").
    """

    KIND = "reduction_plan"

    replicas: int
    reduce_dtype: str | None
    bytes: int
    buckets: tuple[Mapping[str, Any], ...]
    sparse: tuple[Mapping[str, Any], ...]

    @property
    def dtype(self) -> str:
        """In which most bytes of dense gradients travel."""
        sizes: Counter[str] = Counter()
        for bucket in self.buckets:
            sizes[bucket["dtype"]] += bucket["bytes"]
        return max(sizes, key=lambda name: sizes[name], default="float32")


@dataclass(frozen=True, kw_only=True)
class Straggler(Event):
    """A worker that is slower than the others, or no longer is.

    Attributes:
        step: where this was found.
        rank: the worker.
        since_step: the first step of the time in which it was slow.
        factor: its own time in a step relative to the median of the others'.
        cause: the part of a step in which it loses most: waiting for its data ("input"),
            the step itself ("compute"), or its callbacks ("callbacks").
        resolved: whether it is no longer slow.
    """

    KIND = "straggler"

    step: int
    rank: int
    since_step: int | None
    factor: float
    cause: str
    resolved: bool = False


@dataclass(frozen=True, kw_only=True)
class Gradients(Event):
    """The gradients of one sampled step: of one worker, or aggregated over all."""

    KIND = "gradients"

    run: str
    step: int
    values: Numbers


@dataclass(frozen=True, kw_only=True)
class CheckpointEvent(Event):
    """A model or a checkpoint was saved; training paused for `blocking_seconds`."""

    KIND = "checkpoint"

    step: int
    epoch: int | None
    path: str | None
    seconds: float | None
    bytes: float | None
    blocking_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointFailed(Event):
    """A checkpoint could not be written after all retries."""

    KIND = "checkpoint_failed"

    step: int
    error: str | None


@dataclass(frozen=True, kw_only=True)
class EarlyStop(Event):
    """Training stopped before its last epoch."""

    KIND = "early_stop"

    step: int | None
    epoch: int | None
    reason: str | None


EVENT_TYPES: dict[str, type[Event]] = {cls.KIND: cls for cls in Event.__subclasses__()}
"""The class of each kind."""

_FIELDS = {cls: tuple(vars(cls)["__annotations__"]) for cls in EVENT_TYPES.values()}


def field_names(kind: type[Event]) -> tuple[str, ...]:
    """The fields that a record of this kind has, next to `v`, `t` and `kind`."""
    return _FIELDS[kind]
