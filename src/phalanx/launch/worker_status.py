"""Where each worker is, in words: from its last heartbeat and the stacks of its threads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.monitoring.event_log import last_record

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
        since: when it began that, in seconds since the epoch.
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
        until: when that was, in seconds since the epoch.
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


def last_position(records: Path) -> WorkerProgress | None:
    """The last heartbeat in a worker's records; None where there is none."""
    record = last_record(records, "heartbeat", "t", "phase", "step", "epoch")
    if record is None:
        return None
    end = last_record(records, "worker_end", "t")
    if end is not None and end["t"] >= record["t"]:  # It beats no more, while it leaves.
        return WorkerProgress(
            phase="idle", since=end["t"], step=record["step"], epoch=record["epoch"]
        )
    return WorkerProgress(
        phase=record["phase"],
        since=record["t"] - record.get("phase_seconds", 0.0),
        step=record["step"],
        epoch=record["epoch"],
    )


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
