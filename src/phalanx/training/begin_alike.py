"""Where replicas keep plain variables of their own, training begins from the chief's."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.distributed.strategy import MultiWorkerStrategy, uses_horovod
from phalanx.training.exchange import all_gather_rows
from phalanx.training.prepare import Stage

_log = logging.getLogger(__name__)


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
    values = _of_chief(stage.strategy, known)
    own = [_differ(v, value) for v, value in zip(known, values, strict=True)]
    differ = all_gather_rows(stage.strategy, stage.place, np.array([*own, False], np.int64))
    for number in np.flatnonzero(differ.any(axis=0)):
        known[number].assign(values[number])
    if stage.place.is_chief and not uses_horovod(stage.strategy):
        _tell(known, differ)


def _of_chief(strategy: MultiWorkerStrategy, variables: list[Any]) -> list[Any]:
    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def broadcast() -> list[tf.Tensor]:
        return strategy.collectives.broadcast([v.value for v in variables])

    values: list[tf.Tensor] = broadcast()
    return values


def _differ(variable: Any, value: tf.Tensor) -> bool:
    return not np.array_equal(
        variable.numpy(), value.numpy(), equal_nan=bool(value.dtype.is_floating)
    )


def _tell(variables: list[Any], differ: Any) -> None:
    numbers = np.flatnonzero(differ.any(axis=0))
    if not numbers.size:
        return
    workers = ", ".join(str(rank) for rank in np.flatnonzero(differ.any(axis=1)))
    more = f" and {numbers.size - 1} more" if numbers.size > 1 else ""
    _log.warning(
        "Workers begin with different values of %s%s: worker %s differs from the chief. All go on "
        "with the chief's. Initialise and load weights alike on every worker.",
        variables[numbers[0]].path,
        more,
        workers,
    )
