"""The kinds of records that pages about a run are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.launch.preemption import RESUME_EXIT_CODE as SAVED
from phalanx.report.event import Event, Numbers

__all__ = [
    "KINDS",
    "AttemptStart",
    "CheckpointEvent",
    "CheckpointFailed",
    "EarlyStopEvent",
    "EpochLogs",
    "Event",
    "FitEnd",
    "FitStart",
    "Gradients",
    "HeartbeatEvent",
    "Numbers",
    "PreemptionEvent",
    "Resize",
    "Restart",
    "RunEnd",
    "RunStart",
    "Stall",
    "StepLogs",
    "StragglerEvent",
    "ThroughputEvent",
    "WorkerEnd",
    "WorkerExitEvent",
    "WorkerReplaced",
    "WorkerStart",
]


@dataclass(frozen=True, kw_only=True)
class RunStart(Event):
    """The launcher began."""

    KIND = "run_start"

    workers: int | None
    strategy: str | None
    seed: int | None


@dataclass(frozen=True, kw_only=True)
class AttemptStart(Event):
    """The worker group was started."""

    KIND = "attempt_start"


@dataclass(frozen=True, kw_only=True)
class WorkerExitEvent(Event):
    """A worker's process ended; `of` is its rank."""

    KIND = "worker_exit"

    of: int
    code: int | None
    signal: str | None
    stopped: bool
    summary: str | None

    @property
    def is_failure(self) -> bool:
        """Whether it ended badly by itself; the launcher stops the others after that."""
        return not self.stopped and (self.signal is not None or self.code not in (0, SAVED))

    @property
    def has_saved(self) -> bool:
        """Whether it saved and stopped, to go on later."""
        return self.code == SAVED


@dataclass(frozen=True, kw_only=True)
class Restart(Event):
    """Another attempt will begin, `seconds` from now."""

    KIND = "restart"

    of: int | None
    cause: str | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Resize(Event):
    """The worker group starts with other workers; `workers` are their first ranks."""

    KIND = "resize"

    workers: tuple[int, ...]
    cause: str | None


@dataclass(frozen=True, kw_only=True)
class Stall(Event):
    """A step takes far longer than usual."""

    KIND = "stall"

    what: str


@dataclass(frozen=True, kw_only=True)
class PreemptionEvent(Event):
    """A signal asked training to save and stop."""

    KIND = "preemption"

    signal: str | None


@dataclass(frozen=True, kw_only=True)
class WorkerReplaced(Event):
    """A worker that a chief leads was lost, and another took its place; `of` is its rank."""

    KIND = "worker_replaced"

    of: int
    cause: str | None


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
    error: str | None


@dataclass(frozen=True, kw_only=True)
class FitStart(Event):
    """A `fit` begins."""

    KIND = "fit_start"

    epochs: int | None
    initial_epoch: int | None
    steps: int | None
    model: str | None
    parameters: int | None
    optimizer: str | None


@dataclass(frozen=True, kw_only=True)
class FitEnd(Event):
    """A `fit` ended well."""

    KIND = "fit_end"

    step: int | None
    epoch: int | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class StepLogs(Event):
    """The metrics were read."""

    KIND = "step"

    step: int
    epoch: int | None
    logs: Numbers
    learning_rate: float | None


@dataclass(frozen=True, kw_only=True)
class EpochLogs(Event):
    """An epoch ended."""

    KIND = "epoch"

    step: int
    epoch: int
    logs: Numbers
    learning_rate: float | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class HeartbeatEvent(Event):
    """A worker is alive."""

    KIND = "heartbeat"

    phase: str | None
    phase_seconds: float | None
    step: int | None
    epoch: int | None
    memory_bytes: float | None


@dataclass(frozen=True, kw_only=True)
class ThroughputEvent(Event):
    """How fast the last steps were, and where their time went."""

    KIND = "throughput"

    step: int
    steps: int | None
    seconds: float | None
    samples: float | None
    samples_per_second: float | None
    step_seconds: Numbers
    shares: Numbers
    memory_bytes: float | None


@dataclass(frozen=True, kw_only=True)
class StragglerEvent(Event):
    """Worker `of` was found to hold up the others, or no longer does (`gone`)."""

    KIND = "straggler"

    step: int
    of: int
    since_step: int | None
    factor: float | None
    cause: str | None
    gone: bool


@dataclass(frozen=True, kw_only=True)
class Gradients(Event):
    """One sampled step's gradients, of one worker or of the total."""

    KIND = "gradients"

    run: str
    step: int
    values: Numbers


@dataclass(frozen=True, kw_only=True)
class CheckpointEvent(Event):
    """A model or a state was saved."""

    KIND = "checkpoint"

    step: int
    epoch: int | None
    path: str | None
    seconds: float | None
    bytes: float | None


@dataclass(frozen=True, kw_only=True)
class CheckpointFailed(Event):
    """Storage refused a checkpoint as often as it was tried."""

    KIND = "checkpoint_failed"

    step: int
    error: str | None


@dataclass(frozen=True, kw_only=True)
class EarlyStopEvent(Event):
    """Training was stopped early."""

    KIND = "stop"

    step: int | None
    epoch: int | None
    reason: str | None


KINDS: dict[str, type[Event]] = {cls.KIND: cls for cls in Event.__subclasses__()}
"""Kind -> what it is read as. Records of other kinds are passed over."""
