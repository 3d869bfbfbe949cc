"""Comet, online or offline (`COMET_START_ONLINE=false`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import comet_ml

from phalanx.trackers.protocol import Point, RunInfo, Status, Value


def make() -> CometTracker:
    """See `protocol.make_tracker`."""
    return CometTracker()


class CometTracker:
    """One experiment, by a key of ours, so that every start continues it."""

    def __init__(self) -> None:
        self._experiment: Any = None
        self.place = ""

    def start(self, run: RunInfo) -> str:
        """See `Tracker.start`."""
        directory = run.directory / "trackers" / "comet"
        self._experiment = comet_ml.start(
            project=run.project,
            experiment_key=run.key,
            mode="create" if run.tracker_id is None else "get_or_create",
            experiment_config=comet_ml.ExperimentConfig(
                name=run.name,
                offline_directory=str(directory),
                log_code=False,
                log_graph=False,
                parse_args=False,
                log_git_metadata=False,
                log_git_patch=False,
                display_summary_level=0,
                auto_output_logging=False,
                auto_param_logging=False,
                auto_metric_logging=False,
                auto_log_co2=False,
            ),
        )
        self._experiment.log_parameters(dict(run.config))
        self._is_online = not isinstance(self._experiment, comet_ml.OfflineExperiment)
        self.place = self._experiment.url if self._is_online else f"comet upload {directory}/*.zip"
        return str(self._experiment.id)

    def log(self, points: Sequence[Point]) -> None:
        """See `Tracker.log`."""
        for point in points:
            self._experiment.log_metrics(dict(point.values), step=point.step)

    def describe(self, facts: Mapping[str, Value]) -> None:
        """See `Tracker.describe`."""
        self._experiment.log_others({f"run/{name}": fact for name, fact in facts.items()})

    def log_artifact(self, path: Path) -> None:
        """See `Tracker.log_artifact`."""
        self._experiment.log_model("model", str(path))

    def flush(self) -> bool:
        """Online, whether the server has it all. Offline, `finish` writes the archive."""
        return self._is_online and bool(self._experiment.flush())

    def finish(self, status: Status) -> None:
        """See `Tracker.finish`."""
        self._experiment.end()
