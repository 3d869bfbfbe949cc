"""`phalanx debug status`: the status of each worker, live or after the run."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phalanx.errors import ConfigurationError
from phalanx.launcher.failure import FailureRecord
from phalanx.launcher.root_cause import WorkerExit, root_cause
from phalanx.launcher.run_layout import AttemptPaths
from phalanx.launcher.worker_diagnosis import (
    diagnose_failure,
    diagnose_wait,
    diff_batch_specs,
    line_about,
    progress_of,
)
from phalanx.launcher.worker_status import (
    RUNNING,
    WorkerProgress,
    WorkerState,
    WorkerStatus,
    worker_status_of,
)
from phalanx.monitoring.events import RunEnd, WorkerExitEvent
from phalanx.monitoring.flight_format import Flight
from phalanx.monitoring.flight_reader import read_flight
from phalanx.report.event_reader import RunReader
from phalanx.report.live import LiveRun, LiveWorker
from phalanx.report.worker_state import SILENT_SECONDS, end_state, run_state, unresponsive

_FLIGHT = re.compile(r"worker-(\d{1,9})\.flight")


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The status of the workers of one attempt.

    Attributes:
        attempt: which start of the worker group.
        attempts: how many starts there were.
        state: the state of the run, in a few words.
        verdict: who waits for whom, or who failed first.
        workers: each of them, by rank.
        differ: a line where their last batches are of different form.
        now: the time of the look.
    """

    attempt: int
    attempts: int
    state: str
    verdict: str
    workers: Mapping[int, WorkerStatus]
    differ: str | None
    now: float

    @property
    def lines(self) -> list[str]:
        """All of it in words."""
        again = f", attempt {self.attempt} of 0 to {self.attempts - 1}" if self.attempts > 1 else ""
        details = [f"Worker {rank}: {line_about(w, self.now)}" for rank, w in self.workers.items()]
        return [f"The run: {self.state}{again}.", f"{self.verdict}.", *details] + (
            [self.differ] if self.differ else []
        )

    def to_json(self) -> dict[str, Any]:
        """All of it as data; docs/debugging.md has the fields."""
        return {
            "attempt": self.attempt,
            "attempts": self.attempts,
            "state": self.state,
            "verdict": self.verdict,
            "batches_differ": self.differ,
            "time": self.now,
            "workers": [_as_data(rank, each, self.now) for rank, each in self.workers.items()],
        }


_SECOND_LOOK = 2.5
"""Seconds. A worker that lives writes to its flight recorder each second."""


def read_status(
    run: Path,
    *,
    attempt: int | None = None,
    now: float,
    sleep: Callable[[float], None] = time.sleep,
) -> RunStatus:
    """Look at a run that continues, hangs, or is over.

    Args:
        run: its directory.
        attempt: which start of the worker group; None for the last.
        now: seconds since the epoch.
        sleep: lets seconds pass, before a second look at workers that seem silent.

    Raises:
        ConfigurationError: there was no such attempt, or nothing was written of it.
    """
    attempts = AttemptPaths.next(run)
    chosen = attempts - 1 if attempt is None else attempt
    if not 0 <= chosen < attempts:
        raise ConfigurationError(
            f"Asked for attempt {chosen} of the run {run.name}; it has {attempts}, counted from 0."
        )
    paths = AttemptPaths(run=run, attempt=chosen)
    statuses = _last_status(run, chosen, is_last=chosen == attempts - 1)
    flights = _flights(paths)
    behind = _clocks_behind(flights, statuses, paths, now, sleep)
    found = {
        rank: _worker(rank, flights.get(rank), statuses, paths, now, behind.get(rank))
        for rank in sorted({*flights, *statuses.workers})
    }
    if not found:
        raise ConfigurationError(
            f"Nothing is written of attempt {chosen} of the run {run.name}: no worker has started."
        )
    differ = diff_batch_specs(found)
    return RunStatus(
        attempt=chosen,
        attempts=attempts,
        state=run_state(statuses, now) if chosen == attempts - 1 else "restarted after this",
        verdict=_verdict(found, statuses, paths, now),
        workers=found,
        differ=differ[0] if differ else None,
        now=now,
    )


def _last_status(run: Path, attempt: int, *, is_last: bool) -> LiveRun:
    statuses = LiveRun()
    events = RunReader(run).poll()
    statuses.take(
        e for e in events if e.attempt <= attempt and (is_last or not isinstance(e, RunEnd))
    )
    statuses.workers = {r: w for r, w in statuses.workers.items() if w.attempt == attempt}
    return statuses


def _flights(paths: AttemptPaths) -> dict[int, Flight]:
    found = {}
    for file in paths.directory.glob("worker-*.flight"):
        name = _FLIGHT.fullmatch(file.name)
        flight = read_flight(file)
        if name is not None and flight is not None:
            found[int(name[1])] = flight
    return found


def _clocks_behind(
    flights: Mapping[int, Flight],
    statuses: LiveRun,
    paths: AttemptPaths,
    now: float,
    sleep: Callable[[float], None],
) -> dict[int, float]:
    """Seconds that the clocks of workers that live are behind this one, where that is much.

    Whether a worker lives shows in a second look, by this process's clock, and not in the times
    that it wrote.
    """
    seem_silent = {
        rank: flight
        for rank, flight in flights.items()
        if _is_silent(statuses.workers.get(rank), flight, now)
    }
    if not seem_silent:
        return {}
    sleep(_SECOND_LOOK)
    again = _flights(paths)
    return {
        rank: now - flight.alive / 1e9
        for rank, flight in seem_silent.items()
        if rank in again and again[rank].alive != flight.alive
    }


def _is_silent(worker: LiveWorker | None, flight: Flight, now: float) -> bool:
    if flight.ended is not None or (worker is not None and worker.exit is not None):
        return False
    return not _is_killed(flight) and abs(now - flight.alive / 1e9) > SILENT_SECONDS


def _is_killed(flight: Flight) -> bool:
    return flight.host == socket.gethostname() and not _is_there(flight.pid)


def _worker(
    rank: int,
    flight: Flight | None,
    statuses: LiveRun,
    paths: AttemptPaths,
    now: float,
    behind: float | None,
) -> WorkerStatus:
    known = statuses.workers.get(rank)
    progress = (
        (flight and progress_of(flight))
        or (known and known.progress)
        or WorkerProgress(phase="start", since=now)
    )
    if behind is not None:
        progress = replace(progress, since=progress.since + behind)
    stacks = ""
    with suppress(OSError):
        file = paths.stacks(rank)
        if file.stat().st_mtime >= progress.since:  # Else it has moved on since.
            stacks = file.read_text(errors="replace")
    state, until = _state_of(known, flight, now, is_alive=behind is not None)
    return worker_status_of(progress, stacks, state=state, until=until)


def _state_of(
    worker: LiveWorker | None, flight: Flight | None, now: float, *, is_alive: bool
) -> tuple[WorkerState, float | None]:
    """The state of a worker, and when its process ended or last reported; None for running ones.

    Args:
        worker: its events.
        flight: its flight recorder.
        now: seconds since the epoch.
        is_alive: whether a second look at the flight recorder found new records.
    """
    ended = None if worker is None else end_state(worker)
    if worker is not None and worker.exit is not None and ended is not None:
        return ended, worker.exit.t
    if flight is None:
        return RUNNING, None
    if flight.ended is not None:
        return ended or WorkerState(name="ended"), flight.ended / 1e9
    alive = flight.alive / 1e9
    if _is_killed(flight):
        return WorkerState(name="killed"), alive
    if is_alive or not _is_silent(worker, flight, now):
        return RUNNING, None
    return unresponsive(now - alive), alive


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _verdict(
    found: Mapping[int, WorkerStatus], statuses: LiveRun, paths: AttemptPaths, now: float
) -> str:
    exits = [w.exit for w in statuses.workers.values() if w.exit is not None]
    cause = root_cause([_ending(exit_, paths) for exit_ in exits])
    if cause is not None and cause.rank in found:
        return (
            f"worker {cause.rank} failed first: {cause.what}; {diagnose_failure(found, cause.rank)}"
        )
    if all(each.state.name == "ended" for each in found.values()):
        return "all workers have ended"
    if all(each.state.is_absent for each in found.values()):
        before = {rank: replace(each, state=RUNNING) for rank, each in found.items()}
        return f"no worker is left; before that {diagnose_wait(before, now)}"
    return diagnose_wait(found, now)


def _ending(exit_: WorkerExitEvent, paths: AttemptPaths) -> WorkerExit:
    return WorkerExit(
        rank=exit_.rank,
        exit_code=exit_.code or 0,
        at=exit_.t,
        terminated_by_launcher=exit_.terminated_by_launcher,
        failure=FailureRecord.read(paths.error(exit_.rank)),
    )


def _as_data(rank: int, each: WorkerStatus, now: float) -> dict[str, Any]:
    progress = each.progress
    return {
        "rank": rank,
        "phase": progress.phase,
        "activity": each.activity,
        "seconds": round((each.until or now) - progress.since, 3),
        "step": progress.step,
        "epoch": progress.epoch,
        "collective": progress.waits_in,
        "is_late": each.is_late,
        "batch": progress.batch or None,
        "location": each.location or None,
        "state": each.state.name,
        "reason": each.state.reason,
    }
