"""What the launcher's records say; `docs/records.md` tells what each field means."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.launch.preemption import RESUME_EXIT_CODE as SAVED
from phalanx.report.event import Event


@dataclass(frozen=True, kw_only=True)
class RunStart(Event):
    """The launcher began."""

    KIND = "run_start"

    workers: int | None
    strategy: str | None
    seed: int | None


@dataclass(frozen=True, kw_only=True)
class AttemptStart(Event):
    """The gang was started."""

    KIND = "attempt_start"


@dataclass(frozen=True, kw_only=True)
class WorkerExit(Event):
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
    """The gang starts with other workers than before, `workers` of those numbered at first."""

    KIND = "resize"

    workers: tuple[int, ...]
    cause: str | None


@dataclass(frozen=True, kw_only=True)
class Stall(Event):
    """A step takes far longer than usual."""

    KIND = "stall"

    what: str


@dataclass(frozen=True, kw_only=True)
class Preemption(Event):
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
