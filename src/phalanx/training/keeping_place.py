"""Where steps that went wrong are kept, and whether one was."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from phalanx.cluster.spec import WorkerSpec
from phalanx.state.captured import FOLDER

MOST_BYTES = 4 * 10**9
"""Of batch and weights together; a step with more is not kept."""


@dataclass
class KeepingPlace:
    """Where this process keeps steps, and how many more.

    Attributes:
        folder: where; None to keep none.
        left: how many more this process may keep.
        most_bytes: of batch and weights of one step.
    """

    folder: Path | None = None
    left: int = 1
    most_bytes: int = MOST_BYTES


_here: KeepingPlace | None = None


def keeping_place() -> KeepingPlace:
    """Where this process keeps steps: in the run's directory, under `phalanx run`."""
    global _here
    if _here is None:
        spec = WorkerSpec.from_environment(os.environ)
        run = None if spec is None else spec.run_dir
        _here = KeepingPlace(folder=None if run is None else Path(run) / FOLDER)
    return _here


def forget_keeping_place() -> None:
    """Look for the place anew when it is next asked for, as a process does that begins."""
    global _here
    _here = None


def where_kept(step: int) -> str:
    """A sentence that says how to look at a step, if some worker has kept it."""
    folder = keeping_place().folder
    kept = [] if folder is None else list(folder.glob(f"worker-*-step-{step}"))
    if folder is None or not kept:
        return ""
    return f" It is kept: `phalanx debug replay {folder.parent}` names the layer and the samples."
