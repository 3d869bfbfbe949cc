"""What each tracker implements, and what it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol, cast

Value = str | int | float | bool
Status = Literal["running", "finished", "failed", "stopped"]
"""How a run is: "stopped" if it was ended from outside, also if it saved and can be resumed."""


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """What a tracker gets about the run at the start.

    Attributes:
        key: 32 hexadecimal digits, drawn once for this run and tracker.
        tracker_id: the tracker's own id of the run, if it was started there before; else None.
        name: the name of the run.
        directory: its directory, in which a tracker may keep files.
        project: the project or experiment; None for the tracker's default.
        config: options, arguments of the script, versions and so on, by name, without secrets.
        git_commit: the commit that was checked out; None if unknown.
    """

    key: str
    tracker_id: str | None
    name: str
    directory: Path
    project: str | None
    config: Mapping[str, Value]
    git_commit: str | None = None


@dataclass(frozen=True, kw_only=True)
class Point:
    """Metrics at one step.

    Attributes:
        step: the training step.
        time: when they were read, seconds since the epoch.
        values: by name; may hold NaN and infinities.
    """

    step: int
    time: float
    values: Mapping[str, float]


class Tracker(Protocol):
    """One run in one tracker. Any exception means: not taken, to be tried again."""

    def start(self, run: RunInfo) -> str:
        """Create the run, or continue the one of `tracker_id` or `key`; returns its id."""

    @property
    def place(self) -> str:
        """Where the user finds the run: a URL, a path or a command."""

    def log(self, points: Sequence[Point]) -> None:
        """Take metrics."""

    def describe(self, facts: Mapping[str, Value]) -> None:
        """Set facts about the run, each by its name; a later value replaces an earlier one."""

    def log_artifact(self, path: Path) -> None:
        """Take a file."""

    def flush(self) -> bool:
        """Whether all that was logged so far is safe at the tracker, or in its files on disk."""

    def finish(self, status: Status) -> None:
        """End it; returns once all of it is safe."""


def make_tracker(name: str) -> Tracker:
    """The tracker of that name in `TRACKERS`. This imports its package.

    Raises:
        ImportError: its package cannot be imported.
    """
    module = import_module(f"phalanx.trackers.{name}")
    return cast(Tracker, module.make())
