"""Weights & Biases, online or offline (`WANDB_MODE=offline`)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb

from phalanx.trackers.protocol import Point, RunInfo, Status, Value

STEP = "step"
"""The metric that is the x axis of all others: wandb's own step only grows, and it drops the rest.

https://docs.wandb.ai/guides/track/log/customize-logging-axes
"""


def make() -> WandbTracker:
    """See `protocol.make_tracker`."""
    return WandbTracker()


class WandbTracker:
    """One run of wandb, by an id of ours, so that every start continues it."""

    def __init__(self) -> None:
        self._run: Any = None
        self.place = ""

    def start(self, run: RunInfo) -> str:
        """See `Tracker.start`."""
        directory = run.directory / "trackers"
        # After a try that failed, wandb's own process says for ever that the run is in use.
        wandb.teardown(exit_code=1)
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=run.key,
            resume="allow",
            config=dict(run.config),
            dir=None if "WANDB_DIR" in os.environ else str(directory),
            allow_val_change=True,
            settings=wandb.Settings(console="off", reinit="finish_previous", disable_code=True),
        )
        self._run.define_metric("*", step_metric=STEP)
        self.place = self._run.url or f"wandb sync {Path(self._run.dir).parent}"
        return run.key

    def log(self, points: Sequence[Point]) -> None:
        """See `Tracker.log`."""
        for point in points:
            self._run.log({STEP: point.step, **point.values})

    def describe(self, facts: Mapping[str, Value]) -> None:
        """See `Tracker.describe`."""
        self._run.summary.update({f"run/{name}": fact for name, fact in facts.items()})

    def log_artifact(self, path: Path) -> None:
        """See `Tracker.log_artifact`."""
        artifact = wandb.Artifact(f"model-{self._run.id}", type="model")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def flush(self) -> bool:
        """Not before `finish`: wandb says neither what the server has nor what is in its file."""
        return False

    def finish(self, status: Status) -> None:
        """See `Tracker.finish`."""
        self._run.finish(exit_code=1 if status == "failed" else 0)
