"""What the switches of `phalanx run` ask of `fit` and `evaluate`."""

from __future__ import annotations

import os
from typing import Any

from phalanx.cluster.debug_options import DebugOptions
from phalanx.cluster.spec import WorkerSpec


def switches() -> DebugOptions:
    """Those of this worker's run; all off where there is no launcher."""
    spec = WorkerSpec.from_environment(os.environ)
    return DebugOptions() if spec is None else spec.switches


def syncs_batchnorm() -> bool:
    """Whether BatchNormalization has the mean and variance of the global batch."""
    spec = WorkerSpec.from_environment(os.environ)
    return spec is None or spec.sync_batchnorm


def steps_of_trial(steps: int | None, batches: int | None) -> int | None:
    """How many steps a pass has: `steps`, or fewer in a run that is a trial.

    Args:
        steps: what was asked for; None for one pass over the data.
        batches: how many the data has, where that is known.
    """
    if not (most := switches().trial_batches):
        return steps
    return min(n for n in (steps, batches, most) if n is not None)


def runs_eagerly(model: Any) -> bool:
    """Whether the model's steps run as Python, not as a graph."""
    return bool(model.run_eagerly) or switches().debug
