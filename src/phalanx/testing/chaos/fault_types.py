"""The faults, as values: what is to happen to which worker, and when."""

from __future__ import annotations

import builtins
import errno
from dataclasses import dataclass, fields

from phalanx.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What all faults have.

    Attributes:
        every_attempt: happen again after a restart; else once in a run.
    """

    every_attempt: bool = False

    def __str__(self) -> str:
        """As it is written in a plan: the fields that are not as usual."""
        values = ((f, getattr(self, f.name)) for f in fields(self))
        words = [f"{f.name}={value!r}" for f, value in values if value != f.default]
        return f"{type(self).__name__}({', '.join(words)})"


@dataclass(frozen=True, kw_only=True)
class WorkerFault(Fault):
    """Happens to one worker when it has done a step, before its callbacks see that.

    Attributes:
        worker: the rank, from 0.
        step: the training step, counted from 1 over the whole training, as in the records.

    Raises:
        ConfigurationError: no worker or step has such a number.
    """

    worker: int
    step: int

    def __post_init__(self) -> None:
        _at_least(self, "worker", self.worker, 0)
        _at_least(self, "step", self.step, 1)


@dataclass(frozen=True, kw_only=True)
class Kill(WorkerFault):
    """SIGKILL: the process ends at once, as by the kernel's out-of-memory killer."""


@dataclass(frozen=True, kw_only=True)
class Exit(WorkerFault):
    """The process ends with `code`, and says nothing to anybody."""

    code: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least(self, "code", self.code, 0)


@dataclass(frozen=True, kw_only=True)
class Freeze(WorkerFault):
    """SIGSTOP: the process makes no progress for `seconds`; None is forever."""

    seconds: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _not_negative(self, "seconds", self.seconds or 0.0)


@dataclass(frozen=True, kw_only=True)
class SlowDown(WorkerFault):
    """The worker takes `seconds` longer for each of `steps` steps."""

    seconds: float
    steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _not_negative(self, "seconds", self.seconds)
        _at_least(self, "steps", self.steps, 1)


@dataclass(frozen=True, kw_only=True)
class Raise(WorkerFault):
    """The training raises a built-in exception, named by `error`, with `message`."""

    error: str = "RuntimeError"
    message: str = "a fault on purpose"

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = getattr(builtins, self.error, None)
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise ConfigurationError(
                f"Raise takes the name of a built-in exception, such as 'ValueError'; found "
                f"error={self.error!r}."
            )


@dataclass(frozen=True, kw_only=True)
class DropNetwork(WorkerFault):
    """No connection between the worker and the others lasts, for `seconds`; None is forever.

    With 0 those that there are are shut once. TensorFlow reconnects, and where no message
    was under way training continues.
    """

    seconds: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _not_negative(self, "seconds", self.seconds or 0.0)


@dataclass(frozen=True, kw_only=True)
class StorageFault(Fault):
    """Happens to files written to `faulty+...://` by one worker, or by each.

    Attributes:
        worker: the rank; None for every worker.
        nth: the first write that it happens to, counted from 1 in each process.
        times: to how many writes in a row; None for all from then on.

    Raises:
        ConfigurationError: there is no such worker or write.
    """

    worker: int | None = None
    nth: int = 1
    times: int | None = 1

    def __post_init__(self) -> None:
        _at_least(self, "worker", self.worker or 0, 0)
        _at_least(self, "nth", self.nth, 1)
        _at_least(self, "times", 1 if self.times is None else self.times, 1)

    def hits(self, write: int) -> bool:
        """Whether it happens to the process's write of that number."""
        return self.nth <= write and (self.times is None or write < self.nth + self.times)


@dataclass(frozen=True, kw_only=True)
class FailWrites(StorageFault):
    """The write is refused with an error number of the system, half of it done if it can be."""

    error: str = "ENOSPC"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(getattr(errno, self.error, None), int):
            raise ConfigurationError(
                "FailWrites takes the name of an error number, such as 'ENOSPC', 'EIO' or "
                f"'EROFS'; found error={self.error!r}."
            )


@dataclass(frozen=True, kw_only=True)
class SlowWrites(StorageFault):
    """The write takes `seconds` longer."""

    seconds: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _not_negative(self, "seconds", self.seconds)


@dataclass(frozen=True, kw_only=True)
class VanishingDirectory(StorageFault):
    """The directory that is written to is removed, with all in it, right before the write."""


Plan = tuple[Fault, ...]
"""What is to happen in a run, in any order."""


def _at_least(fault: Fault, name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(
            f"{type(fault).__name__} needs a whole number of at least {least} for {name}; found "
            f"{value!r}."
        )


def _not_negative(fault: Fault, name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ConfigurationError(
            f"{type(fault).__name__} needs seconds of 0 or more for {name}; found {value!r}."
        )
