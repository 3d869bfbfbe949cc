"""Trackio: local files, a Hugging Face Space (`TRACKIO_SPACE_ID`) or a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trackio

from phalanx.trackers.protocol import Point, RunInfo, Status, Value

PROJECT = "phalanx"
"""Trackio needs one."""


def make() -> TrackioTracker:
    """See `protocol.make_tracker`."""
    return TrackioTracker()


class TrackioTracker:
    """One run of Trackio, by a name that no other run has.

    Trackio stores in a thread, and says that it has only by ending: so it is opened for each
    batch of points.
    """

    def __init__(self) -> None:
        self.place = ""
        self._step = 0

    def start(self, run: RunInfo) -> str:
        """See `Tracker.start`."""
        self._project = run.project or PROJECT
        self._name = run.tracker_id or f"{run.name}-{run.key[:6]}"
        self._config = dict(run.config)
        self.place = f"trackio show --project {self._project}"
        return self._name

    def log(self, points: Sequence[Point]) -> None:
        """See `Tracker.log`."""
        opened = self._open()
        for point in points:
            opened.log(dict(point.values), step=point.step)
            self._step = max(self._step, point.step)
        opened.finish()

    def describe(self, facts: Mapping[str, Value]) -> None:
        """See `Tracker.describe`."""
        opened = self._open()
        opened.log({f"run/{name}": fact for name, fact in facts.items()}, step=self._step)
        opened.finish()

    def log_artifact(self, path: Path) -> None:
        """Trackio keeps no files of a run: its path is shown."""
        self.describe({"model_file": str(path)})

    def flush(self) -> bool:
        """Each batch was stored when `log` returned."""
        return True

    def finish(self, status: Status) -> None:
        """Nothing is open."""

    def _open(self) -> Any:
        return trackio.init(
            self._project,
            self._name,
            config=self._config,
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )
