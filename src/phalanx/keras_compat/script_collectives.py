"""The collectives that a script's own steps call, compared between workers before they begin.

`tf.distribute.ReplicaContext.all_reduce` and `all_gather` are public; what is replaced is what a
`train_step`, a layer or a loop calls. Nothing is, unless the run was asked to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from phalanx.distributed.desync.check import current_check
from phalanx.distributed.strategy import WorkerContext
from phalanx.gradients.collective_signature import compared
from phalanx.keras_compat.patches import Patches

_CONTEXT = tf.distribute.ReplicaContext
_GATHER = ((_CONTEXT, "all_gather"), (WorkerContext, "all_gather"))  # which overrides it


def _replacements() -> Mapping[tuple[Any, str], Any]:
    if current_check() is None:
        return {}
    return {
        (_CONTEXT, "all_reduce"): _compared_all_reduce(_CONTEXT.all_reduce),
        **{(kind, name): _compared_all_gather(getattr(kind, name)) for kind, name in _GATHER},
    }


def _compared_all_reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    def all_reduce(self: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
        with compared("an all_reduce", tf.nest.flatten(value)):
            return original(self, reduce_op, value, options)

    return all_reduce


def _compared_all_gather(original: Callable[..., Any]) -> Callable[..., Any]:
    def all_gather(self: Any, value: Any, axis: int, options: Any = None) -> Any:
        with compared("an all_gather", tf.nest.flatten(value), free_axis=axis):
            return original(self, value, axis, options)

    return all_gather


collectives_are_compared = Patches(_replacements)
"""Enter it, and workers that were asked to compare do so before their own collectives, too."""
