"""What happens in parallel to training; one callback a file.

A callback is imported when it is first named, because some need libraries of their own.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.callbacks.aggregated_logger import AggregatedLogger as AggregatedLogger
    from phalanx.callbacks.callback import Callback as Callback
    from phalanx.callbacks.checkpoint import Checkpoint as Checkpoint
    from phalanx.callbacks.gradient_logger import GradientLogger as GradientLogger
    from phalanx.callbacks.progress_bar import DistributedProgress as DistributedProgress
    from phalanx.callbacks.replica_check import ReplicaConsistencyCheck as ReplicaConsistencyCheck
    from phalanx.callbacks.stragglers import StragglerDetector as StragglerDetector
    from phalanx.callbacks.throughput import ThroughputMonitor as ThroughputMonitor
    from phalanx.callbacks.triggers import every_n_epochs as every_n_epochs
    from phalanx.callbacks.triggers import every_n_seconds as every_n_seconds
    from phalanx.callbacks.triggers import every_n_steps as every_n_steps

_HOMES = {
    "AggregatedLogger": "phalanx.callbacks.aggregated_logger",
    "Callback": "phalanx.callbacks.callback",
    "Checkpoint": "phalanx.callbacks.checkpoint",
    "DistributedProgress": "phalanx.callbacks.progress_bar",
    "GradientLogger": "phalanx.callbacks.gradient_logger",
    "ReplicaConsistencyCheck": "phalanx.callbacks.replica_check",
    "StragglerDetector": "phalanx.callbacks.stragglers",
    "ThroughputMonitor": "phalanx.callbacks.throughput",
    "every_n_epochs": "phalanx.callbacks.triggers",
    "every_n_steps": "phalanx.callbacks.triggers",
    "every_n_seconds": "phalanx.callbacks.triggers",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Load a callback from its file on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'phalanx.callbacks' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
