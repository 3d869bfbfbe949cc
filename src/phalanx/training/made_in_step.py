"""What the first step makes lazily: the chief's values of it on every worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from phalanx.data.place import ReplicaPlace
from phalanx.distributed.strategy import MultiWorkerStrategy
from phalanx.training.broadcast_variables import broadcast_variables


class MadeInStep:
    """Gives every worker the chief's values of what the first step makes lazily."""

    def __init__(
        self,
        model: Any,
        strategy: MultiWorkerStrategy,
        place: ReplicaPlace,
        known: Sequence[Any] = (),
    ) -> None:
        """Look for variables of model and optimizer beside those that are `known`.

        Args:
            model: a compiled model.
            strategy: connected to all workers.
            place: this worker's.
            known: variables that are alike already.
        """
        self._model = model
        self._strategy = strategy
        self._place = place
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
        with tf.init_scope(), tf.device(self._strategy.collectives.device):
            made = [v for v in state_variables(self._model) if id(v) not in self._known]
            broadcast_variables(self._strategy, self._place, made)


def state_variables(model: Any) -> list[Any]:
    """The variables of a model and of the optimizer that it was compiled with, each once."""
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *getattr(optimizer, "variables", [])]
    return list({id(v): v for v in variables}.values())
