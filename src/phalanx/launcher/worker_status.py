"""The status of a worker: its progress, its state, and the stacks of its threads.

Hang detection, `phalanx debug status`, `phalanx watch` and reports use the same classes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from phalanx.monitoring.event_log import records_backwards
from phalanx.monitoring.flight_reader import current_phase

_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)')
_THREAD = re.compile(r"^Thread ", re.MULTILINE)
_LIBRARIES = ("site-packages", "dist-packages", "/lib/python", "/phalanx/", "<frozen")
_PYTHON_IN_PIPELINE = "/tensorflow/python/ops/script_ops.py"
"""Runs the Python code of a `tf.data` pipeline: generators, `tf.py_function`."""

_WORDS = {
    "start": "starting",
    "input": "waiting in next(iterator)",
    "compute": "in a step",
    "callbacks": "in a callback",
    "checkpoint": "saving a checkpoint",
    "validation": "in validation",
    "idle": "outside of training",
}
"""Texts for the phases of docs/records.md."""

EXIT_BARRIER = "exit barrier"
"""The barrier in which workers wait for each other after their scripts."""

Frame = tuple[str, int, str]
"""File, line and function."""


@dataclass(frozen=True, kw_only=True)
class WorkerProgress:
    """How far a worker is, by its last report.

    Attributes:
        phase: a phase of docs/records.md.
        since: when the phase began, in seconds of the reader's clock.
        step: the last step that it trained, from 1.
        epoch: the epoch, from 0.
        waits: whether it is in a collective, or in the step that ends with one; None if its flight
            recorder does not say.
        waits_in: the name of the collective, if it is not the step's own all-reduce.
        arrived: the step of the last batch that arrived, of a call that trains several.
        batch: names, shapes and dtypes of its last batch.
        failed: whether the phase ended with an error.
    """

    phase: str
    since: float
    step: int | None = None
    epoch: int | None = None
    waits: bool | None = None
    waits_in: str | None = None
    arrived: int | None = None
    batch: str = ""
    failed: bool = False

    @property
    def next_step(self) -> str:
        """The step after the last one that it trained."""
        return "the first step" if self.step is None else f"step {self.step + 1}"

    @property
    def activity(self) -> str:
        """The phase or the collective, as text."""
        if self.waits_in is not None:
            return f"in the {self.waits_in}"
        return _WORDS.get(self.phase, self.phase)

    @property
    def after(self) -> str:
        """The step, as the end of a sentence."""
        return "" if self.step is None else f" after step {self.step}"


State = Literal[
    "starting", "running", "slow", "unresponsive", "failed", "killed", "stopped", "ended"
]


@dataclass(frozen=True, kw_only=True)
class WorkerState:
    """The state of a worker's process.

    Attributes:
        name: "killed" is a process that ended without a report, "stopped" one that the launcher
            ended.
        reason: why, or how; None if there is nothing to add.
    """

    name: State
    reason: str | None = None

    @property
    def is_problem(self) -> bool:
        """Whether to highlight it."""
        return self.name in ("slow", "unresponsive", "failed", "killed")

    @property
    def is_absent(self) -> bool:
        """Whether other workers wait for it in vain, and not because the launcher ended it."""
        return self.name in ("unresponsive", "failed", "killed", "ended")

    @property
    def description(self) -> str:
        """The state as text that follows "worker 0"."""
        match self.name:
            case "failed":
                return f"failed: {self.reason}"
            case "killed":
                return "ended without a report: it was killed"
            case "ended":
                return f"has {self.reason or 'ended'}"
            case "unresponsive":
                return f"is unresponsive ({self.reason}): stopped, or its host is lost"
            case _:
                return f"is {self.name}" + (f" ({self.reason})" if self.reason else "")


SAVED = "saved and stopped"
"""The reason of the state "ended" of a worker that can resume."""
RUNNING = WorkerState(name="running")


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """The progress and the state of a worker, with its stacks.

    Attributes:
        progress: by its last report.
        frames: of its main thread, innermost first; empty if unknown.
        data_frames: of a thread that makes its data in Python; empty if there is none.
        state: of its process.
        until: when its process ended or last reported, by the clock of `progress.since`; None for
            a process that is running.
    """

    progress: WorkerProgress
    frames: Sequence[Frame] = ()
    data_frames: Sequence[Frame] = ()
    state: WorkerState = RUNNING
    until: float | None = None

    @property
    def is_late(self) -> bool:
        """Whether others may be waiting for it: it is not waiting in TensorFlow itself."""
        if self.state.is_absent or self.progress.phase == "input" or self.data_frames:
            return True
        if self.progress.waits_in == EXIT_BARRIER:
            return True
        if self.frames:
            return not _is_in_tensorflow(self.frames)
        return self.progress.waits is False

    @property
    def activity(self) -> str:
        """The phase or the collective, as text."""
        if self.data_frames and self.progress.phase in ("input", "compute"):
            return _WORDS["input"]
        return self.progress.activity

    @property
    def location(self) -> str:
        """The line of the user's code, as text; empty if unknown."""
        if self.data_frames:
            return f"its data is being made at {user_frame(self.data_frames)}"
        location = user_frame(self.frames)
        if location is None:
            return ""
        waits = "it waits in TensorFlow, called from" if not self.is_late else "it is at"
        return f"{waits} {location}"


def worker_status_of(
    progress: WorkerProgress,
    stacks: str,
    *,
    state: WorkerState = RUNNING,
    until: float | None = None,
) -> WorkerStatus:
    """The status of a worker with the last dump in its stacks file; see `WorkerStatus`."""
    return WorkerStatus(
        progress=progress,
        frames=main_frames(stacks),
        data_frames=data_frames(stacks),
        state=state,
        until=until,
    )


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """A worker's last heartbeat.

    Attributes:
        phase: a phase of docs/records.md; "idle" after the end of the script.
        phase_number: counts the phases that the process began; None if it is not recorded.
        seconds: the duration of the phase when the heartbeat was written.
        step: the last step that it trained, from 1.
        epoch: the epoch, from 0.
        t: the time in the record. It only distinguishes two heartbeats.
    """

    phase: str
    phase_number: int | None
    seconds: float
    step: int | None
    epoch: int | None
    t: float

    @property
    def activity(self) -> tuple[object, ...]:
        """Differs from that of the previous heartbeat if the worker began anything new since."""
        return self.phase, self.phase_number, self.step, self.epoch


def last_heartbeat_in(records: Path) -> Heartbeat | None:
    """The last heartbeat in a worker's records; None if there is none."""
    has_ended = False
    for record in records_backwards(records):
        if record.get("kind") == "worker_end":
            has_ended = True  # It writes no more heartbeats.
        if record.get("kind") == "heartbeat" and record.keys() >= {"t", "phase", "step", "epoch"}:
            return Heartbeat(
                phase="idle" if has_ended else record["phase"],
                phase_number=record.get("phase_number"),
                seconds=0.0 if has_ended else record.get("phase_seconds") or 0.0,
                step=record["step"],
                epoch=record["epoch"],
                t=record["t"],
            )
    return None


class HeartbeatReader:
    """Follows one worker's heartbeats, and judges them by the reader's clock.

    The time in a record is not used: the writer's clock may be set while it runs, or be hours off
    on another host. What counts is when the reader first saw that a new activity had started.

    Where no heartbeat comes, such as on a full disk, the flight recorder shows new activity.

    Attributes:
        last_heartbeat: when the reader saw the last new heartbeat.
    """

    def __init__(self, records: Path, now: float, *, flight: Path | None = None) -> None:
        """Start with an attempt; heartbeats that are in the file are of an earlier one.

        Args:
            records: the worker's records.
            now: the time, by the reader's clock.
            flight: the file of its flight recorder.
        """
        self._records = records
        self._flight = flight
        self._flight_phase: tuple[object, ...] | None = None
        self._last = last_heartbeat_in(records)
        self._progress = WorkerProgress(phase="start", since=now)
        self._activity: tuple[object, ...] | None = None
        self._polled = self.last_heartbeat = now

    @property
    def has_started(self) -> bool:
        """Whether the worker has reported in this attempt: it handles signals from then on."""
        return self._activity is not None

    def poll(self, now: float) -> WorkerProgress:
        """The progress of the worker; `since` is of the reader's clock.

        Args:
            now: the time, by the reader's clock.
        """
        beat = last_heartbeat_in(self._records)
        before, self._flight_phase = self._flight_phase, self._current_phase()
        if beat is None and self._activity is not None:
            # Other records fill the end of the file, so the worker writes.
            self._progress, self.last_heartbeat = replace(self._progress, since=now), now
        elif beat is not None and beat != self._last:
            if beat.activity != self._activity:
                # It began after the last poll; the heartbeat has its duration.
                lasted = min(beat.seconds, now - self._polled)
                self._progress = WorkerProgress(
                    phase=beat.phase, since=now - lasted, step=beat.step, epoch=beat.epoch
                )
            self._last, self._activity, self.last_heartbeat = beat, beat.activity, now
        elif self._flight_phase not in (None, before):
            self._progress, self.last_heartbeat = replace(self._progress, since=now), now
        self._polled = now
        return self._progress

    def _current_phase(self) -> tuple[object, ...] | None:
        return None if self._flight is None else current_phase(self._flight)


def main_frames(stacks: str) -> list[Frame]:
    """The frames of the main thread in the last dump of a stacks file, innermost first."""
    last = stacks.rpartition("Current thread")[2]
    return _frames(last.split("\n\n")[0])


def data_frames(stacks: str) -> list[Frame]:
    """The frames of the first thread that makes data in Python in the last dump."""
    # A dump lists the other threads first, and the main thread last; the next follows at once.
    before = stacks.rpartition("Current thread")[0].rpartition("Current thread")[2]
    for thread in _THREAD.split(before)[1:]:
        frames = _frames(thread)
        if any(_PYTHON_IN_PIPELINE in file for file, _, _ in frames):
            return frames
    return []


def user_frame(frames: Sequence[Frame]) -> str | None:
    """The innermost frame of the user's code, else the innermost of all."""
    own = [frame for frame in frames if not any(part in frame[0] for part in _LIBRARIES)]
    for file, line, function in [*own, *frames][:1]:
        return f"{_relative(file)}:{line}, in {function}"
    return None


def _relative(file: str) -> str:
    """The path as a user in the working directory would write it."""
    with suppress(ValueError, OSError):
        return str(Path(file).relative_to(Path.cwd()))
    return file


def _frames(thread: str) -> list[Frame]:
    return [(m["file"], int(m["line"]), m["function"]) for m in _FRAME.finditer(thread)]


def _is_in_tensorflow(frames: Sequence[Frame]) -> bool:
    return "/tensorflow/" in frames[0][0]
