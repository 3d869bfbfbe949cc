"""Phalanx's callbacks where no worker trains in step with another: they run in the chief."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from phalanx.callbacks.callback import Callback
from phalanx.training.context import CallContext

_ROOM = "phalanx.callbacks."


def introduce(stage: CallContext, callbacks: Iterable[Any], workers: int) -> None:
    """Let callbacks know, until `stage` ends, how many workers the chief leads."""
    for callback in callbacks:
        if isinstance(callback, Callback):
            stage.exit.callback(setattr, callback, "cluster", callback.cluster)
            callback.cluster = replace(callback.cluster, ps_tasks=workers)


def logs_gradients(callbacks: Iterable[Any]) -> bool:
    """Whether the epoch's logs are to have the norms of the workers' own gradients."""
    return any(_own_name(callback) == "GradientLogger" for callback in callbacks)


def _own_name(callback: Any) -> str | None:
    """The name of a callback of Phalanx's or made from one; None for others."""
    kinds = (k for k in type(callback).__mro__ if k.__module__.startswith(_ROOM))
    return next((kind.__name__ for kind in kinds), None)
