"""Where replicas keep plain variables of their own, training begins from the chief's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from phalanx.distributed.strategy import MultiWorkerStrategy, uses_horovod
from phalanx.errors import DisagreementError
from phalanx.training.exchange import all_gather_rows
from phalanx.training.made_in_step import (
    MadeInStep,
    differs,
    state_variables,
    tell_of_others,
)
from phalanx.training.prepare import Stage
from phalanx.training.step import StepFunction
from phalanx.worker.flight import flight


def begin_alike(stage: Stage, function: StepFunction) -> None:
    """Give every worker the chief's model and optimizer; all workers must call it.

    A script may have read weights on one worker alone, and expect them to be everybody's, as
    scripts made for Horovod do.
    """
    if not isinstance(stage.strategy, MultiWorkerStrategy) or not stage.place.has_peers:
        return
    known = _alike_in_number(stage)
    make_alike_lazily(stage, function, known)
    size = sum(v.value.dtype.size * math.prod(v.shape) for v in known)
    with flight.collective("hand-over of the chief's state", size):
        values = stage.strategy.collectives.broadcast([v.value for v in known])
    own = [differs(v, value) for v, value in zip(known, values, strict=True)]
    differ = all_gather_rows(stage.strategy, stage.place, np.array([*own, False], np.int64))
    for number in np.flatnonzero(differ.any(axis=0)):
        known[number].assign(values[number])
    if stage.place.is_chief and not uses_horovod(stage.strategy):
        tell_of_others(known, differ)


def _alike_in_number(stage: Stage) -> list[Any]:
    """The variables of model and optimizer, of which all workers have equally many.

    Raises:
        DisagreementError: they have not, although the optimizer is built.
    """
    model: Any = stage.model
    optimizer: Any = getattr(model, "optimizer", None)
    is_built = bool(getattr(optimizer, "built", True))
    built = all_gather_rows(stage.strategy, stage.place, np.array([is_built], np.int64))
    if built.any() and not is_built:  # some worker has read its state, or used it
        optimizer.build(model.trainable_variables)
    known = state_variables(model)
    numbers = all_gather_rows(stage.strategy, stage.place, np.array([len(known)], np.int64))[:, 0]
    if len(set(numbers)) > 1:
        found = ", ".join(f"{number} on worker {rank}" for rank, number in enumerate(numbers))
        raise DisagreementError(
            f"fit needs the same variables of model and optimizer on every worker; found {found}. "
            "Build the same model and optimizer on every worker."
        )
    return known


def make_alike_lazily(stage: Stage, function: StepFunction, known: Sequence[Any] = ()) -> None:
    """Have the first step give every worker the chief's values of variables but those `known`."""
    if not isinstance(stage.strategy, MultiWorkerStrategy) or not stage.place.has_peers:
        return
    if not function.is_traced:
        tells = not uses_horovod(stage.strategy)  # its scripts begin with other seeds
        made = MadeInStep(stage.model, stage.strategy.collectives, known, tells=tells)
        function.companions.setdefault(MadeInStep, made)
