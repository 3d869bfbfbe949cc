"""The launcher's records: how a run began, went on and ended, as data.

A disk that is full does not end a run: what cannot be written is left out.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from phalanx.launch.prefork import ForkedWorker
from phalanx.launch.process import WorkerHandle
from phalanx.launch.root_cause import WorkerExit
from phalanx.monitoring.events import RecordWriter, launcher_records_path


class LauncherEvents:
    """Writes to `<run>/records/launcher.jsonl`; `docs/records.md` says what."""

    def __init__(self, run_dir: Path, *, clock: Callable[[], float]) -> None:
        """Open the file.

        Args:
            run_dir: the run's directory.
            clock: seconds since the epoch.
        """
        self._writer: RecordWriter | None = None
        with suppress(OSError):
            self._writer = RecordWriter(launcher_records_path(run_dir), clock=clock)

    def run_start(
        self, *, name: str, workers: int, strategy: str, seed: int, argv: Sequence[str]
    ) -> None:
        """The run was made."""
        self._write(
            "run_start", name=name, workers=workers, strategy=strategy, seed=seed, argv=list(argv)
        )

    def attempt_start(self, attempt: int, handles: Mapping[int, WorkerHandle]) -> None:
        """All workers were started."""
        here = socket.gethostname()
        workers = [
            {
                "rank": r,
                "pid": h.pid,
                "host": getattr(h, "host", here),
                "forked": isinstance(h, ForkedWorker),
            }
            for r, h in sorted(handles.items())
        ]
        self._write("attempt_start", attempt=attempt, workers=workers)

    def worker_exit(self, attempt: int, ending: WorkerExit) -> None:
        """A worker's process has ended."""
        self._write(
            "worker_exit",
            attempt=attempt,
            rank=ending.rank,
            code=ending.exit_code,
            signal=_signal_name(ending.exit_code),
            stopped=ending.stopped,
            summary=ending.what if ending.failed else None,
        )

    def replaced(self, attempt: int, ending: WorkerExit, *, pid: int) -> None:
        """Another process has taken the place of a worker that failed."""
        self._write(
            "worker_replaced", attempt=attempt, rank=ending.rank, cause=ending.what, pid=pid
        )

    def restart(self, attempt: int, *, cause: WorkerExit | None, seconds: float) -> None:
        """The worker group restarts as `attempt` after `seconds`; no cause means that it hung."""
        rank, what = (cause.rank, cause.what) if cause else (None, "it stood still")
        self._write("restart", attempt=attempt, rank=rank, cause=what, seconds=seconds)

    def resize(self, attempt: int, *, members: Sequence[int], why: str) -> None:
        """The worker group starts as `attempt` with other workers than before."""
        self._write("resize", attempt=attempt, workers=list(members), cause=why)

    def stall(self, attempt: int, what: str) -> None:
        """A step takes far longer than usual."""
        self._write("stall", attempt=attempt, what=what)

    def preemption(self, attempt: int, *, number: int) -> None:
        """A signal came that asks training to save and stop."""
        self._write("preemption", attempt=attempt, signal=_signal_name(-number))

    def run_end(self, *, exit_code: int, report: str | None) -> None:
        """The run is over."""
        self._write("run_end", exit_code=exit_code, report=report)
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, kind: str, **fields: object) -> None:
        if self._writer is not None:
            with suppress(OSError):
                self._writer.write(kind, **fields)


def _signal_name(code: int) -> str | None:
    if code >= 0:
        return None
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
