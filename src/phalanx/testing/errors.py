"""What a worker group of test workers raises when it does not end well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phalanx.errors import PhalanxError, WorkerFailedError
from phalanx.launcher.failure import FailureRecord
from phalanx.launcher.root_cause import is_secondary


@dataclass(frozen=True, kw_only=True)
class WorkerFailure:
    """How one worker ended badly.

    Attributes:
        rank: the worker's rank.
        type_name: the exception's class name, or "Died" where Python raised nothing.
        message: the exception's text, or what ended the process.
        traceback: the formatted traceback; empty where Python raised nothing.
        exitcode: the process's exit code, negative for a signal; None if it was still running.
        time: when it happened, by the machine's monotonic clock, for ordering.
    """

    rank: int
    type_name: str
    message: str
    traceback: str
    exitcode: int | None
    time: float

    @property
    def is_secondary(self) -> bool:
        """Whether it is what a worker sees when one of its peers has ended."""
        failure = FailureRecord(
            rank=self.rank,
            type=self.type_name,
            message=self.message,
            traceback=self.traceback,
            time=self.time,
        )
        return is_secondary(failure)


class WorkerGroupFailedError(WorkerFailedError):
    """A worker of a worker group raised or died; the message shows the earliest failure.

    One that a peer's death explains counts as the earliest only if all are such: who is killed is
    seen dead a moment later than its peers lose their connections.

    Attributes:
        failures: by rank; None for a worker that returned or was stopped by the worker group.
        first: the earliest failure.
        rank: the rank of the earliest failure.
        logs: by rank, the last lines of what each worker printed.
    """

    def __init__(self, failures: Sequence[WorkerFailure | None], logs: Sequence[str]) -> None:
        self.failures = list(failures)
        self.logs = list(logs)
        ended_badly = sorted(
            (f for f in failures if f is not None), key=lambda f: (f.is_secondary, f.time)
        )
        self.first = ended_badly[0]
        self.rank = self.first.rank
        lines = [
            f"Worker {self.rank} of {len(self.failures)} failed first: "
            f"{self.first.type_name}: {self.first.message}"
        ]
        lines += [
            f"Afterwards worker {f.rank}: {f.type_name}: {f.message}" for f in ended_badly[1:]
        ]
        if self.first.traceback:
            lines += ["", self.first.traceback.rstrip()]
        lines += [
            "",
            f"The last lines of worker {self.rank}'s output:",
            logs[self.rank] or "(none)",
        ]
        super().__init__("\n".join(lines))


class WorkerGroupTimeoutError(PhalanxError):
    """A worker group did not finish before its deadline; the message shows where each worker was.

    Attributes:
        stacks: by rank of every worker that had not returned, its threads' Python stacks.
        logs: by rank, the last lines of what each worker printed.
    """

    def __init__(self, deadline: float, stacks: Mapping[int, str], logs: Sequence[str]) -> None:
        self.stacks = dict(stacks)
        self.logs = list(logs)
        lines = [
            f"A worker group of {len(self.logs)} workers did not finish within {deadline:g} s."
        ]
        for rank, log in enumerate(self.logs):
            lines.append("")
            if rank in self.stacks:
                lines += [f"Worker {rank} was here:", self.stacks[rank].rstrip() or "(no stack)"]
            else:
                lines.append(f"Worker {rank} had returned.")
            lines += [f"The last lines of worker {rank}'s output:", log or "(none)"]
        super().__init__("\n".join(lines))
