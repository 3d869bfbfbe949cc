"""Where replicas keep plain variables of their own, training begins from the chief's."""

from __future__ import annotations

from typing import Any

from phalanx.training.prepare import Stage


def begin_alike(stage: Stage) -> None:
    """Give every worker the chief's model and optimizer; all workers must call it.

    TensorFlow's own strategies see to that when a variable is made. Under Horovod a script
    may have read weights on one worker alone, and expects them to be everybody's.
    """
    broadcast = getattr(stage.strategy, "broadcast_state", None)
    if broadcast is None or not stage.place.has_peers:
        return
    optimizer: Any = getattr(stage.model, "optimizer", None)
    variables = [*stage.model.variables, *getattr(optimizer, "variables", [])]
    broadcast([v.value for v in {id(v): v for v in variables}.values()])
