"""Where replicas keep plain variables of their own, training begins from the chief's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.distributed.host_collectives import on_any_worker
from phalanx.distributed.strategy import MultiWorkerStrategy
from phalanx.training.broadcast_variables import MadeInStep, broadcast_variables, state_variables
from phalanx.training.context import CallContext
from phalanx.training.step_function import StepFunction


def broadcast_initial_state(stage: CallContext, function: StepFunction) -> None:
    """Give every worker the chief's model and optimizer; all workers must call it.

    A script may have read weights on one worker alone, and expect them to be everybody's, as
    scripts made for Horovod do.

    Raises:
        WorkerMismatchError: workers' models or optimizers have other variables.
    """
    if not isinstance(stage.strategy, MultiWorkerStrategy) or not stage.topology.has_peers:
        return
    model: Any = stage.model
    optimizer: Any = getattr(model, "optimizer", None)
    is_built = bool(getattr(optimizer, "built", True))
    (is_built_somewhere,) = on_any_worker(stage.strategy, stage.topology, is_built)
    if is_built_somewhere and not is_built:  # some worker has read its state, or used it
        optimizer.build(model.trainable_variables)
    known = state_variables(model)
    broadcast_on_first_build(stage, function, known)
    broadcast_variables(stage.strategy, stage.topology, known)


def broadcast_on_first_build(
    stage: CallContext, function: StepFunction, known: Sequence[Any] = ()
) -> None:
    """Have the first step give every worker the chief's values of variables but those `known`."""
    if not isinstance(stage.strategy, MultiWorkerStrategy) or not stage.topology.has_peers:
        return
    if not function.is_traced:
        made = MadeInStep(stage.model, stage.strategy, stage.topology, known)
        function.extensions.setdefault(MadeInStep, made)
