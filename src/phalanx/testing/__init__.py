"""Tests of distributed training in real processes, for Phalanx and for its users."""

from __future__ import annotations

from phalanx.testing.errors import WorkerFailure, WorkerGroupFailedError, WorkerGroupTimeoutError
from phalanx.testing.multi_process import run_single, run_workers
from phalanx.testing.pool import WorkerPool

__all__ = [
    "WorkerFailure",
    "WorkerGroupFailedError",
    "WorkerGroupTimeoutError",
    "WorkerPool",
    "run_single",
    "run_workers",
]
