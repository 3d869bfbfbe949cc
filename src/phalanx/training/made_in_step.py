"""What the first step makes lazily: the chief's values of it on every worker."""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.distributed.collectives import Collectives
from phalanx.errors import DisagreementError
from phalanx.worker.flight import flight

_log = logging.getLogger(__name__)


class MadeInStep:
    """Gives every worker the chief's values of what the first step makes lazily."""

    def __init__(
        self,
        model: Any,
        collectives: Collectives,
        known: Sequence[Any] = (),
        *,
        tells: bool = True,
    ) -> None:
        """Look for variables of model and optimizer beside those that are `known`.

        Args:
            model: a compiled model.
            collectives: connected to all workers.
            known: variables that are alike already.
            tells: whether to warn where workers' values differ.
        """
        self._model = model
        self._tells = tells
        self._collectives = collectives
        self._known = {id(v) for v in known}
        self._done = False

    def make_alike(self) -> None:
        """Called where a step has been traced and not yet run, on all workers at the same step.

        Raises:
            DisagreementError: workers have made variables of other shapes or dtypes.
        """
        if self._done:
            return
        self._done = True
        collectives = self._collectives
        with tf.init_scope(), tf.device(collectives.device):
            made = [v for v in state_variables(self._model) if id(v) not in self._known]
            kinds = [zlib.crc32(f"{v.dtype}{tuple(v.shape)}".encode()) for v in made]
            numbers = collectives.all_gather(tf.constant([len(made)])).numpy()
            if not numbers.any():
                return
            row = np.zeros([1, max(numbers)], np.int64)
            row[0, : len(kinds)] = kinds
            found = collectives.all_gather(tf.constant(row)).numpy()
            unlike = np.flatnonzero((found != found[0]).any(axis=0))
            if unlike.size:
                raise _made_otherwise(made, int(unlike[0]), found, collectives.rank)
            size = sum(v.value.dtype.size * math.prod(v.shape) for v in made)
            with flight.collective("hand-over of what the first step makes", size):
                values = collectives.broadcast([v.value for v in made])
            own = [differs(v, value) for v, value in zip(made, values, strict=True)]
            differ = collectives.all_gather(tf.constant([[*own, False]])).numpy()
            for number in np.flatnonzero(differ.any(axis=0)):
                made[number].assign(values[number])
        if self._tells and collectives.rank == 0:
            tell_of_others(made, differ)


def _made_otherwise(made: list[Any], first: int, found: Any, rank: int) -> DisagreementError:
    other = next(r for r, kinds in enumerate(found) if kinds[first] != found[rank][first])
    own = made[first].path if first < len(made) else "no variable"
    return DisagreementError(
        "The first step must make the same variables of model and optimizer on every worker; "
        f"worker {rank} makes {own} where worker {other} makes another or none. Build the same "
        "model and optimizer on every worker."
    )


def state_variables(model: Any) -> list[Any]:
    """The variables of a model and of the optimizer that it was compiled with, each once."""
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *getattr(optimizer, "variables", [])]
    return list({id(v): v for v in variables}.values())


def differs(variable: Any, value: tf.Tensor) -> bool:
    """Whether a variable is not `value`."""
    return not np.array_equal(
        variable.numpy(), value.numpy(), equal_nan=bool(value.dtype.is_floating)
    )


def tell_of_others(variables: list[Any], differ: Any) -> None:
    """Warn of variables whose values differed: `differ` has a row for each worker."""
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
