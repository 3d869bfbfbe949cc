"""Tests of distributed training in real processes, for Phalanx and for its users."""

from __future__ import annotations

from phalanx.testing.errors import GangFailedError, GangTimeoutError, WorkerFailure
from phalanx.testing.multi_process import run_alone, run_gang
from phalanx.testing.pool import WorkerPool

__all__ = [
    "GangFailedError",
    "GangTimeoutError",
    "WorkerFailure",
    "WorkerPool",
    "run_alone",
    "run_gang",
]
