"""Where replicas keep plain variables of their own, training begins from the chief's."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from phalanx.distributed.strategy import MultiWorkerStrategy
from phalanx.training.prepare import Stage


def begin_alike(stage: Stage) -> None:
    """Give every worker the chief's model and optimizer; all workers must call it.

    A script may have read weights on one worker alone, and expect them to be everybody's, as
    scripts made for Horovod do.
    """
    if not isinstance(stage.strategy, MultiWorkerStrategy) or not stage.place.has_peers:
        return
    optimizer: Any = getattr(stage.model, "optimizer", None)
    variables = [*stage.model.variables, *getattr(optimizer, "variables", [])]
    known = list({id(v): v for v in variables}.values())
    for variable, value in zip(known, _of_chief(stage.strategy, known), strict=True):
        variable.assign(value)


def _of_chief(strategy: MultiWorkerStrategy, variables: list[Any]) -> list[Any]:
    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def broadcast() -> list[tf.Tensor]:
        return strategy.collectives.broadcast([v.value for v in variables])

    values: list[tf.Tensor] = broadcast()
    return values
