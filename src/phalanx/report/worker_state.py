"""The state of each worker, and of the run, by the events so far."""

from __future__ import annotations

from phalanx.cluster.exit_codes import RESUME_EXIT_CODE
from phalanx.launcher.worker_status import RUNNING, SAVED, WorkerState
from phalanx.report.formatting import format_duration
from phalanx.report.live import LiveRun, LiveWorker

SILENT_SECONDS = 10.0
"""Heartbeats come every two seconds, so several of them were missed."""

LONG_PHASE_SECONDS = 30.0
"""A longer phase within training delays the others."""

_WORKING = ("input", "compute", "callbacks")

SAVED_WORDS = f"{SAVED}, to be resumed"


def state_of(worker: LiveWorker, run: LiveRun, now: float) -> WorkerState:
    """The state of a worker at the time `now`, in seconds since the epoch."""
    ended = end_state(worker)
    if ended is None and run.end is not None:
        ended = (
            WorkerState(name="ended")
            if run.end.exit_code == 0
            else WorkerState(name="stopped", reason="the run has ended; its exit is not recorded")
        )
    return ended or _live_state(worker, now)


def end_state(worker: LiveWorker) -> WorkerState | None:
    """How its process, or else its script, has ended; None if neither is recorded."""
    exit_, end = worker.exit, worker.end
    if exit_ is not None and exit_.is_failure:
        code = exit_.signal or f"exit code {exit_.code}"
        summary = exit_.summary or code
        reason = summary if code in summary else f"{summary} ({code})"
        return WorkerState(name="failed", reason=reason)
    if exit_ is not None and exit_.has_saved:
        return WorkerState(name="ended", reason=SAVED)
    if exit_ is not None and exit_.terminated_by_launcher and not (end is not None and end.ok):
        return WorkerState(name="stopped", reason="by the launcher")
    if end is not None and not end.ok:
        return WorkerState(name="failed", reason=end.error)
    if exit_ is not None or end is not None:
        return WorkerState(name="ended")
    return None


def unresponsive(silence: float) -> WorkerState:
    """The state of a worker without a report for `silence` seconds."""
    for_how_long = f" for {format_duration(silence)}" if silence > 0 else ""
    return WorkerState(name="unresponsive", reason=f"no report{for_how_long}")


def _live_state(worker: LiveWorker, now: float) -> WorkerState:
    silence = now - worker.last_seen
    if silence > SILENT_SECONDS:
        return unresponsive(silence)
    found = worker.straggler
    if found is not None:
        factor = f"{found.factor:.2g} times as long as the others" if found.factor else "too long"
        cause = f" ({found.cause})" if found.cause else ""
        reason = f"takes {factor} since step {found.since_step}{cause}"
        return WorkerState(name="slow", reason=reason)
    if worker.phase in _WORKING and (worker.phase_seconds or 0.0) > LONG_PHASE_SECONDS:
        reason = f"in {worker.phase} for {format_duration(worker.phase_seconds)}"
        return WorkerState(name="slow", reason=reason)
    return RUNNING if worker.has_started else WorkerState(name="starting")


def run_state(run: LiveRun, now: float) -> str:
    """The state of the run, in a few words."""
    if run.end is not None:
        code = run.end.exit_code
        if code == RESUME_EXIT_CODE:
            return SAVED_WORDS
        return "ended well" if code == 0 else f"failed, exit code {code}"
    if run.last_seen is None:
        return "nothing recorded yet"
    if now - run.last_seen > SILENT_SECONDS:
        return "unresponsive: it hangs, or its launcher was killed"
    return "running"
