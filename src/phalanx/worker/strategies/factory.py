"""What a strategy is made from, and where it is made."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

from phalanx.cluster.reduce_options import ReduceOptions
from phalanx.cluster.spec import WorkerSpec


@dataclass(frozen=True, kw_only=True)
class StrategyRequest:
    """What was asked for.

    Attributes:
        communication_backend: how replicas add up, by name; "auto" leaves it to the strategy.
        reduction: in which pieces and in which dtype gradients travel.
        worker: the worker of `phalanx run` that makes it; None in other processes.
    """

    communication_backend: str = "auto"
    reduction: ReduceOptions = field(default_factory=ReduceOptions)
    worker: WorkerSpec | None = None


def make(name: str, request: StrategyRequest) -> Any:
    """Make the `tf.distribute.Strategy` of that name: its file's `make`."""
    home = importlib.import_module(f"phalanx.worker.strategies.{name.replace('-', '_')}")
    return home.make(request)
