"""Faults on purpose: kill, stop, slow down a worker, cut its network, break its storage.

A plan is a tuple of faults. Give it to `fit` as a callback, `Chaos(plan)`, or put it before an
unchanged script: `phalanx run --workers 3 -m phalanx.testing.chaos "Kill(worker=1, step=7)"
train.py`. Storage breaks where a directory is named `faulty+file://...`, `faulty+s3://...` and so
on. Importing this imports neither TensorFlow nor Keras.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from phalanx.testing.chaos.fault_types import (
    DropNetwork,
    Exit,
    FailWrites,
    Fault,
    Freeze,
    Kill,
    Plan,
    Raise,
    SlowDown,
    SlowWrites,
    VanishingDirectory,
)
from phalanx.testing.chaos.plan import command, parse_plan, random_plan, show_plan
from phalanx.testing.chaos.storage_faults import register

if TYPE_CHECKING:
    from phalanx.testing.chaos.callback import Chaos as Chaos

__all__ = [
    "Chaos",
    "DropNetwork",
    "Exit",
    "FailWrites",
    "Fault",
    "Freeze",
    "Kill",
    "Plan",
    "Raise",
    "SlowDown",
    "SlowWrites",
    "VanishingDirectory",
    "command",
    "parse_plan",
    "random_plan",
    "show_plan",
]

register()


def __getattr__(name: str) -> Any:
    """Load the callback, which needs Keras, on first use (PEP 562)."""
    if name != "Chaos":
        raise AttributeError(f"module 'phalanx.testing.chaos' has no attribute {name!r}")
    return importlib.import_module("phalanx.testing.chaos.callback").Chaos
