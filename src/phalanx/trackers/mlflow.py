"""MLflow: a server (`MLFLOW_TRACKING_URI`), a database, or files."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from phalanx.trackers.protocol import Point, RunInfo, Status, Value

T = TypeVar("T")

KEY_TAG = "phalanx.key"
"""Finds the run again if the answer to its creation was lost."""
_STATUS = {"running": "RUNNING", "finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
# Limits of one request and of one value, https://mlflow.org/docs/latest/rest-api.html#log-batch
_METRICS, _PARAMS, _CHARACTERS = 1000, 100, 5000
_NO_NAME = re.compile(r"[^\w\-. :/]")


def make() -> MLflowTracker:
    """See `protocol.make_tracker`."""
    return MLflowTracker()


class MLflowTracker:
    """One MLflow run. Metrics that are sent twice are stored once: they have the same time."""

    def __init__(self) -> None:
        self._client = MlflowClient()
        self._id = ""
        self.place = ""

    def start(self, run: RunInfo) -> str:
        """See `Tracker.start`."""
        found = self._find(run) or self._create(run)
        self._id = found.info.run_id
        self._client.update_run(self._id, status="RUNNING")
        self._log_config(run.config, dict(found.data.params))
        uri = self._client.tracking_uri
        self.place = f"run {self._id} in {uri}"
        if uri.startswith("http"):
            self.place = f"{uri}/#/experiments/{found.info.experiment_id}/runs/{self._id}"
        return self._id

    def _find(self, run: RunInfo) -> Any:
        if run.tracker_id is not None:
            return self._client.get_run(run.tracker_id)
        found = self._client.search_runs(
            [self._experiment(run)], f"tags.`{KEY_TAG}` = '{run.key}'", max_results=1
        )
        return found[0] if found else None

    def _create(self, run: RunInfo) -> Any:
        tags = {KEY_TAG: run.key, "mlflow.source.type": "JOB"}
        if run.git_commit is not None:
            tags["mlflow.source.git.commit"] = run.git_commit
        if "options/target" in run.config:
            tags["mlflow.source.name"] = str(run.config["options/target"])
        return self._client.create_run(self._experiment(run), run_name=run.name, tags=tags)

    def _experiment(self, run: RunInfo) -> str:
        if run.project is None and "MLFLOW_EXPERIMENT_ID" in os.environ:
            return os.environ["MLFLOW_EXPERIMENT_ID"]
        name = run.project or os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))

    def _log_config(self, config: Mapping[str, Value], known: Mapping[str, str]) -> None:
        """Parameters, which MLflow never changes; what a resumed run changed becomes a tag."""
        values = {_name(name): str(value)[:_CHARACTERS] for name, value in config.items()}
        new = [Param(name, value) for name, value in values.items() if name not in known]
        for part in _parts(new, _PARAMS):
            self._client.log_batch(self._id, params=part)
        changed = {n: v for n, v in values.items() if n in known and known[n] != v}
        self.describe({f"resumed/{name}": value for name, value in changed.items()})

    def log(self, points: Sequence[Point]) -> None:
        """See `Tracker.log`."""
        metrics = [
            Metric(_name(name), value, int(point.time * 1000), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for part in _parts(metrics, _METRICS):
            self._client.log_batch(self._id, metrics=part)

    def describe(self, facts: Mapping[str, Value]) -> None:
        """See `Tracker.describe`."""
        tags = [RunTag(_name(name), str(fact)[:_CHARACTERS]) for name, fact in facts.items()]
        for part in _parts(tags, _PARAMS):
            self._client.log_batch(self._id, tags=part)

    def log_artifact(self, path: Path) -> None:
        """See `Tracker.log_artifact`."""
        self._client.log_artifact(self._id, str(path), "model")

    def flush(self) -> bool:
        """Each request was answered."""
        return True

    def finish(self, status: Status) -> None:
        """See `Tracker.finish`."""
        if status == "running":
            return
        self._client.set_terminated(self._id, _STATUS[status], int(time.time() * 1000))


def _name(name: str) -> str:
    return _NO_NAME.sub("_", name)


def _parts(items: Sequence[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
