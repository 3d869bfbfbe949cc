"""The state of each worker, and of the run, at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.cluster.exit_codes import RESUME_EXIT_CODE
from phalanx.report.formatting import format_duration
from phalanx.report.live import LiveRun, LiveWorker

SILENT_SECONDS = 10.0
"""Heartbeats come every two seconds, so several of them were missed."""

LONG_PHASE_SECONDS = 30.0
"""A phase that lasts longer than this within training holds up the others."""

_WORKING = ("input", "compute", "callbacks")

SAVED_WORDS = "saved and stopped, to be resumed"

TROUBLE = ("slow", "unresponsive", "failed")
"""The states to highlight."""


@dataclass(frozen=True, kw_only=True)
class WorkerHealth:
    """A state: "starting", "running", "slow", "unresponsive", "failed", "stopped" or "ended"."""

    state: str
    why: str | None = None

    @property
    def is_problem(self) -> bool:
        """Whether to highlight it."""
        return self.state in TROUBLE


def health_of(worker: LiveWorker, run: LiveRun, now: float) -> WorkerHealth:
    """The state of a worker at the time `now`, in seconds since the epoch."""
    return _gone(worker, run) or _alive(worker, now)


def _gone(worker: LiveWorker, run: LiveRun) -> WorkerHealth | None:
    """How its process, or else its script, or else the whole run ended."""
    exit_, end = worker.exit, worker.end
    if exit_ is not None and exit_.is_failure:
        code = exit_.signal or f"exit code {exit_.code}"
        return WorkerHealth(
            state="failed", why=f"{exit_.summary} ({code})" if exit_.summary else code
        )
    if exit_ is not None and exit_.has_saved:
        return WorkerHealth(state="ended", why="saved and stopped")
    if exit_ is not None and exit_.terminated_by_launcher and not (end is not None and end.ok):
        return WorkerHealth(state="stopped", why="by the launcher")
    if end is not None and not end.ok:
        return WorkerHealth(state="failed", why=end.error)
    if exit_ is not None or end is not None:
        return WorkerHealth(state="ended")
    if run.end is None:
        return None
    if run.end.exit_code == 0:
        return WorkerHealth(state="ended")
    return WorkerHealth(
        state="stopped", why="the run has ended; how this worker did is not recorded"
    )


def _alive(worker: LiveWorker, now: float) -> WorkerHealth:
    silence = now - worker.last_seen
    if silence > SILENT_SECONDS:
        why = f"no report for {format_duration(silence)}"
        return WorkerHealth(state="unresponsive", why=why)
    found = worker.straggler
    if found is not None:
        factor = f"{found.factor:.2g} times as long as the others" if found.factor else "too long"
        cause = f" ({found.cause})" if found.cause else ""
        return WorkerHealth(
            state="slow", why=f"takes {factor} since step {found.since_step}{cause}"
        )
    if worker.phase in _WORKING and (worker.phase_seconds or 0.0) > LONG_PHASE_SECONDS:
        return WorkerHealth(
            state="slow", why=f"in {worker.phase} for {format_duration(worker.phase_seconds)}"
        )
    return WorkerHealth(state="running" if worker.has_started else "starting")


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
