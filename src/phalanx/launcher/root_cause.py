"""The root cause: the worker that failed first, and the report of it."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.cluster.exit_codes import EXIT_NODE_LOST, RESUME_EXIT_CODE
from phalanx.errors import CheckpointError, UnavailableError
from phalanx.launcher.failure import FailureRecord, plain_line
from phalanx.launcher.log_lines import LineAssembler, is_startup_noise, without_style
from phalanx.monitoring.events import WorkerExitEvent

# What the others see when a peer dies: they are not to blame.
TIMED_OUT = "DeadlineExceededError"
_CONSEQUENCE_TYPES = {
    "UnavailableError",
    "AbortedError",
    "CancelledError",
    "WorkerLostError",
    TIMED_OUT,
}
_DIRECTORY_IN_USE = (UnavailableError.__module__, UnavailableError.__name__)
"""Phalanx's own, which has its name in common with TensorFlow's."""
_CONSEQUENCE_TEXTS = re.compile(
    r"Connection reset by peer|Connection refused|Socket closed|failed to connect to all addresses"
    r"|Broken pipe|Collective ops is aborted|is stale|heartbeat timeout"
    r"|Horovod has been shut down",
    re.IGNORECASE,
)
_AMBIGUOUS_TYPES = {
    "InternalError",
    "UnknownError",
    "FailedPreconditionError",
    "InvalidArgumentError",
}

TAKEN_PORT = "Could not start gRPC server"
_TRACEBACK_LINES = 12
_LONG = 120
"""Letters: a line of a traceback that is so long is not said again."""

_PLACE = re.compile(r"worker \d+(?:, replica \d+)?, in ")
_MODULE = re.compile(r"^(?:\w+\.)+(?=\w+: )")
"""What a traceback puts before an exception's name."""


@dataclass(frozen=True, kw_only=True)
class WorkerExit:
    """How one worker ended.

    Attributes:
        rank: the worker.
        exit_code: as `subprocess` gives it: negative for a signal.
        at: when the launcher first saw its end or its failure record, by the launcher's clock.
        terminated_by_launcher: whether the launcher had signalled it to end.
        failure: what the worker wrote down, if anything.
        unkillable_pid: its process id where it has not ended after SIGKILL.
    """

    rank: int
    exit_code: int
    at: float
    terminated_by_launcher: bool = False
    failure: FailureRecord | None = None
    unkillable_pid: int | None = None

    @property
    def failed(self) -> bool:
        """Whether it failed on its own, not because the launcher ended it."""
        return self.failure is not None or not (self.terminated_by_launcher or self.is_clean)

    @property
    def has_saved(self) -> bool:
        """Whether it has saved and stopped, to continue later."""
        return self.exit_code == RESUME_EXIT_CODE

    @property
    def could_not_save(self) -> bool:
        """Whether it was to save and stop, or to save at all, and could not."""
        return self.failure is not None and self.failure.type == CheckpointError.__name__

    @property
    def is_clean(self) -> bool:
        """Whether it came to its end, or saved and stopped."""
        return self.exit_code in (0, RESUME_EXIT_CODE)

    @property
    def is_secondary(self) -> bool:
        """Whether it failed only because another worker had ended."""
        return self.failure is not None and is_secondary(self.failure)

    @property
    def what(self) -> str:
        """What became of it, in one line."""
        return _exit(self.exit_code) if self.failure is None else self.failure.summary

    @property
    def shell_code(self) -> int:
        """The exit code as a shell would give it: 128 + the number of a fatal signal."""
        if self.failure is not None and (self.terminated_by_launcher or self.exit_code == 0):
            return self.failure.exit_code
        if self.exit_code == EXIT_NODE_LOST:
            return 1
        return 128 - self.exit_code if self.exit_code < 0 else self.exit_code

    def to_event(self, attempt: int) -> WorkerExitEvent:
        """The event that records it."""
        return WorkerExitEvent(
            attempt=attempt,
            rank=self.rank,
            code=self.exit_code,
            signal=signal_name(-self.exit_code) if self.exit_code < 0 else None,
            terminated_by_launcher=self.terminated_by_launcher,
            summary=self.what if self.failed else None,
        )


def is_secondary(failure: FailureRecord) -> bool:
    """Whether a failure is what a worker sees when one of its peers has ended."""
    if failure.type in _CONSEQUENCE_TYPES:
        return (failure.module, failure.type) != _DIRECTORY_IN_USE
    return failure.type in _AMBIGUOUS_TYPES and bool(_CONSEQUENCE_TEXTS.search(failure.message))


def root_cause(endings: Sequence[WorkerExit]) -> WorkerExit | None:
    """The earliest failure; one that a peer's death explains counts only if all are such."""
    failures = [ending for ending in endings if ending.failed]
    times = _times(failures)
    return min(failures, key=lambda each: (each.is_secondary, times[each.rank]), default=None)


def _times(failures: Sequence[WorkerExit]) -> dict[int, float]:
    """When each failed, on the launcher's clock.

    The workers of one host share a monotonic clock, which orders their failures exactly. What the
    launcher saw first of a host shows how far that clock is from the launcher's. Wall clocks play
    no part: they differ between hosts, and may be set.
    """
    ahead: dict[str, float] = {}
    for each in failures:
        if (failure := each.failure) is not None and failure.monotonic is not None:
            seen = each.at - failure.monotonic
            ahead[failure.boot] = min(seen, ahead.get(failure.boot, seen))
    return {
        each.rank: each.at
        if each.failure is None or each.failure.monotonic is None
        else each.failure.monotonic + ahead[each.failure.boot]
        for each in failures
    }


def can_resume(endings: Sequence[WorkerExit]) -> bool:
    """Whether a worker group as a whole has saved and stopped.

    A worker leaves with `RESUME_EXIT_CODE` when the checkpoint is complete: one that had to be
    stopped after that has lost nothing.
    """
    calm = all(
        each.is_clean or (each.terminated_by_launcher and not each.failed) for each in endings
    )
    return calm and any(each.has_saved for each in endings)


def is_port_conflict(ending: WorkerExit) -> bool:
    """Whether the worker failed because another process held its port."""
    return ending.failure is not None and TAKEN_PORT in ending.failure.message


def failure_report(
    cause: WorkerExit, endings: Sequence[WorkerExit], log: Path, where: Sequence[str] = ()
) -> str:
    """The report: who failed first, with what, where to read on, and how the others ended.

    Args:
        cause: the failure.
        endings: how all workers ended.
        log: the output of the one that failed.
        where: where it and the others were, in sentences.
    """
    lines = [f"Worker {cause.rank} failed first: {cause.what}"]
    if cause.failure is not None and cause.failure.traceback:
        shown_traceback = _without_repetition(cause.failure)
        lines += [f"  {line}" for line in _last_lines(shown_traceback)]
    elif cause.failure is None:
        tail = _log_tail(log)
        if tail:
            lines += ["Its last output:", *(f"  {line}" for line in tail)]
    if cause.failure is not None and cause.failure.advice:
        lines.append(cause.failure.advice)
    lines += where
    lines.append(f"Its log: {log}")
    lines += [
        f"Worker {other.rank} {_exit_description(other, cause).rstrip('.')}."
        for other in sorted(endings, key=lambda ending: ending.rank)
        if other.rank != cause.rank
    ]
    return "\n".join(lines)


def _exit_description(ending: WorkerExit, cause: WorkerExit) -> str:
    if ending.failure is not None and ending.is_secondary:
        return f"failed after it, as its peer had ended ({ending.failure.type})"
    if ending.failed and _everywhere(ending.what) == _everywhere(cause.what):
        return "failed as well, in the same way"
    if ending.failed:
        return f"failed as well: {ending.what}"
    if ending.terminated_by_launcher:
        return "was stopped"
    if cause.is_secondary:
        return (
            "had left without an error and without waiting for the others: see whether its "
            "script calls os._exit"
        )
    return "had ended well"


def _everywhere(what: str) -> str:
    """A failure without the place where it was."""
    return _PLACE.sub("", what)


def _without_repetition(failure: FailureRecord) -> list[str]:
    """A traceback without the lines that the headline has said, unless they are short."""
    summary, place = failure.summary, failure.message.partition("\n")[0]
    kept: list[str] = []
    for line in without_style(failure.traceback.rstrip()).splitlines():
        line_text = _MODULE.sub("", plain_line(line)).removeprefix(f"{failure.type}: ")
        is_place = bool(_PLACE.match(line_text)) and place.startswith(line_text)
        if not is_place and (len(line_text) < _LONG or line_text not in summary):
            kept.append(line)
    return kept


def _exit(code: int) -> str:
    if code == EXIT_NODE_LOST:
        return "its host or the launcher there is lost"
    if code >= 0:
        return f"it ended with exit code {code}"
    name = signal_name(-code)
    hint = " (out of memory?)" if name == "SIGKILL" else ""
    return f"it was killed by {name}{hint}"


def signal_name(number: int) -> str:
    """SIGTERM for 15; "signal 77" where the system has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_lines(lines: list[str]) -> list[str]:
    dropped = len(lines) - _TRACEBACK_LINES
    return lines if dropped <= 0 else ["...", *lines[-_TRACEBACK_LINES:]]


def _log_tail(log: Path, most: int = 8192) -> list[str]:
    try:
        with log.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - most))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    assembler = LineAssembler()
    lines = assembler.feed(text.rstrip().encode()) + assembler.close()
    shown_traceback = [without_style(line) for line in lines if not is_startup_noise(line)]
    return shown_traceback[-_TRACEBACK_LINES:]
