"""Aim: the repository `.aim` of the working directory, or that of `AIM_REPO`, also a remote one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aim

from phalanx.trackers.protocol import Point, RunInfo, Status, Value


def make() -> AimTracker:
    """See `protocol.make_tracker`."""
    return AimTracker()


class AimTracker:
    """One run of Aim. It stores each point as it is tracked."""

    def __init__(self) -> None:
        self._run: Any = None
        self.place = ""

    def start(self, run: RunInfo) -> str:
        """See `Tracker.start`."""
        repo = os.environ.get("AIM_REPO")
        if repo is None:
            aim.Repo.default_repo(init=True)
        self._run = aim.Run(
            run_hash=run.tracker_id,
            repo=repo,
            experiment=run.project,
            system_tracking_interval=None,
            log_system_params=False,
            capture_terminal_logs=False,
            force_resume=True,  # The lock of a process that was killed.
        )
        self._run.name = run.name
        for name, value in run.config.items():
            self._run["config", name] = value
        self.place = f"aim up --repo {self._run.repo.path}"
        return str(self._run.hash)

    def log(self, points: Sequence[Point]) -> None:
        """See `Tracker.log`."""
        for point in points:
            for name, value in point.values.items():
                self._run.track(value, name=name, step=point.step)

    def describe(self, facts: Mapping[str, Value]) -> None:
        """See `Tracker.describe`."""
        for name, fact in facts.items():
            self._run["run", name] = fact

    def log_artifact(self, path: Path) -> None:
        """Aim's own file store needs a URI: without one, the path is recorded."""
        if self._run.artifacts_uri is None:
            self._run["run", "model_file"] = str(path)
        else:
            self._run.log_artifact(str(path))

    def flush(self) -> bool:
        """Aim writes to its database at once."""
        return True

    def finish(self, status: Status) -> None:
        """See `Tracker.finish`."""
        self._run.close()
