"""Where each worker is, in words: from its last heartbeat and the stacks of its threads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from phalanx.monitoring.event_log import records_backwards

_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)')
_THREAD = re.compile(r"^Thread ", re.MULTILINE)
_LIBRARIES = ("site-packages", "dist-packages", "/lib/python", "/phalanx/", "<frozen")
_PYTHON_IN_PIPELINE = "/tensorflow/python/ops/script_ops.py"
"""Runs what a `tf.data` pipeline calls of Python: generators, `tf.py_function`."""

_WORDS = {
    "start": "starting",
    "input": "waiting in next(iterator)",
    "compute": "in a step",
    "callbacks": "in a callback",
    "checkpoint": "saving a checkpoint",
    "validation": "in validation",
    "idle": "outside of training",
}
"""The phases of docs/records.md, as a person says them."""

EXIT_BARRIER = "last meeting"
"""Where workers wait for each other when their scripts have ended."""

Frame = tuple[str, int, str]
"""File, line and function."""


@dataclass(frozen=True, kw_only=True)
class WorkerProgress:
    """What a worker was doing when it last said so.

    Attributes:
        phase: what it does, a word of docs/records.md.
        since: when it began that, in seconds of the clock by which it is judged.
        step: the last step that it trained, from 1.
        epoch: the epoch, from 0.
        waits: whether it has come to where workers wait for each other, or to the step that ends
            there; None where its flight recorder does not say.
        waits_in: the collective that it is in, by name, where that is not the step's own.
        arrived: the step of the last batch that came, of a call that trains several.
        batch: names, shapes and dtypes of its last batch.
        failed: whether it is there no more: what it did raised an error.
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
        """The step that it has not ended."""
        return "the first step" if self.step is None else f"step {self.step + 1}"

    @property
    def activity(self) -> str:
        """What it does, in words."""
        if self.waits_in is not None:
            return f"in the {self.waits_in}"
        return _WORDS.get(self.phase, self.phase)

    @property
    def after(self) -> str:
        """Behind which step, in words that may follow others."""
        return "" if self.step is None else f" after step {self.step}"


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """A worker, as its heartbeat and its stacks show it.

    Attributes:
        position: what it said that it does.
        frames: what its main thread runs, innermost first; empty where that is not known.
        data_frames: what a thread runs that makes its data in Python; empty where none does.
        gone: how its process ended; None while it is there.
        until: when that was, by the clock of `position.since`.
    """

    position: WorkerProgress
    frames: Sequence[Frame] = ()
    data_frames: Sequence[Frame] = ()
    gone: str | None = None
    until: float | None = None

    @property
    def is_late(self) -> bool:
        """Whether others may be waiting for it: it is not waiting in TensorFlow itself."""
        if self.gone is not None or self.position.phase == "input" or self.data_frames:
            return True
        if self.position.waits_in == EXIT_BARRIER:
            return True
        if self.frames:
            return not _is_in_tensorflow(self.frames)
        return self.position.waits is False

    @property
    def activity(self) -> str:
        """What it does, in words."""
        if self.data_frames and self.position.phase in ("input", "compute"):
            return _WORDS["input"]
        return self.position.activity

    @property
    def place(self) -> str:
        """At which line it does that, in words; empty where that is not known."""
        if self.data_frames:
            return f"its data is being made at {user_frame(self.data_frames)}"
        place = user_frame(self.frames)
        if place is None:
            return ""
        waits = "it waits in TensorFlow, called from" if not self.is_late else "it is at"
        return f"{waits} {place}"


def worker_status_of(
    position: WorkerProgress, stacks: str, *, gone: str | None = None, until: float | None = None
) -> WorkerStatus:
    """What can be said of a worker, from the last dump in its stacks file; see `WorkerStatus`."""
    return WorkerStatus(
        position=position,
        frames=main_frames(stacks),
        data_frames=data_frames(stacks),
        gone=gone,
        until=until,
    )


@dataclass(frozen=True, kw_only=True)
class Beat:
    """A worker's last heartbeat.

    Attributes:
        phase: what it does; "idle" once it leaves.
        phase_number: counts the phases that the process began; None where it does not say.
        seconds: for how long it had done that when it wrote the heartbeat.
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
    def progress(self) -> tuple[object, ...]:
        """Differs from that of the heartbeat before if the worker began anything new since."""
        return self.phase, self.phase_number, self.step, self.epoch


def last_beat(records: Path) -> Beat | None:
    """The last heartbeat in a worker's records; None where there is none."""
    has_ended = False
    for record in records_backwards(records):
        if record.get("kind") == "worker_end":
            has_ended = True  # It beats no more, while it leaves.
        if record.get("kind") == "heartbeat" and record.keys() >= {"t", "phase", "step", "epoch"}:
            return Beat(
                phase="idle" if has_ended else record["phase"],
                phase_number=record.get("phase_number"),
                seconds=0.0 if has_ended else record.get("phase_seconds") or 0.0,
                step=record["step"],
                epoch=record["epoch"],
                t=record["t"],
            )
    return None


class BeatReader:
    """Follows one worker's heartbeats, and judges them by the clock of who reads them.

    The time in a record decides nothing: the writer's clock may be set while it runs, or be hours
    off on another host. What counts is when the reader first saw that something new had started.

    Attributes:
        last_heartbeat: when the reader saw the last new heartbeat.
    """

    def __init__(self, records: Path, now: float) -> None:
        """Begin with an attempt; heartbeats in the file are of an earlier one.

        Args:
            records: the worker's records.
            now: the time, by the reader's clock.
        """
        self._records = records
        self._last = last_beat(records)
        self._position = WorkerProgress(phase="start", since=now)
        self._progress: tuple[object, ...] | None = None
        self._looked = self.last_heartbeat = now

    def look(self, now: float) -> WorkerProgress:
        """What the worker does; `since` is of the reader's clock.

        Args:
            now: the time, by the reader's clock.
        """
        beat = last_beat(self._records)
        if beat is None and self._progress is not None:
            # Other records fill the end of the file, so the worker writes.
            self._position, self.last_heartbeat = replace(self._position, since=now), now
        elif beat is not None and beat != self._last:
            if beat.progress != self._progress:
                # It began after the last look, and as long before its heartbeat as that says.
                lasted = min(beat.seconds, now - self._looked)
                self._position = WorkerProgress(
                    phase=beat.phase, since=now - lasted, step=beat.step, epoch=beat.epoch
                )
            self._last, self._progress, self.last_heartbeat = beat, beat.progress, now
        self._looked = now
        return self._position


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
        return f"{file}:{line}, in {function}"
    return None


def _frames(thread: str) -> list[Frame]:
    return [(m["file"], int(m["line"]), m["function"]) for m in _FRAME.finditer(thread)]


def _is_in_tensorflow(frames: Sequence[Frame]) -> bool:
    return "/tensorflow/" in frames[0][0]
