"""What the workers' records say; `docs/records.md` tells what each field means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.report.event import Event, Numbers


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
class Heartbeat(Event):
    """A worker is alive."""

    KIND = "heartbeat"

    phase: str | None
    phase_seconds: float | None
    step: int | None
    epoch: int | None
    memory_bytes: float | None


@dataclass(frozen=True, kw_only=True)
class Throughput(Event):
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
class Straggler(Event):
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
class Checkpoint(Event):
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
class Stop(Event):
    """Training was stopped early."""

    KIND = "stop"

    step: int | None
    epoch: int | None
    reason: str | None
