"""Layer state that each replica changes on its own, aggregated.

A BatchNormalization that is not synchronized updates its moving statistics from the samples of its
replica. The update is linear, so averaging the copies now and then gives the same as averaging at
every step: after an epoch, every replica holds the mean over replicas.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from phalanx.distributed.desync.check import before_collective
from phalanx.gradients.all_reduce import reduce_sum
from phalanx.training.step_function import StepFunction


class LocalState:
    """The floating-point variables that replicas of a model assign on their own."""

    def __init__(self, model: Any, function: StepFunction) -> None:
        """Look for them among the variables of `model` that `function` assigns."""
        self._model = model
        self._steps = function
        self._average: Any = None
        self._averaged: list[int] = []

    def average(self) -> None:
        """Give every replica the mean over replicas; all workers must call it."""
        if self._steps.plan.topology.total == 1:
            return
        variables = self._variables()
        if not variables:
            return
        if [id(v) for v in variables] != self._averaged:
            self._average = self._build(variables)
            self._averaged = [id(v) for v in variables]
        before_collective("layer state")
        self._average()

    @classmethod
    def of(cls, model: Any, function: StepFunction) -> LocalState:
        """The one for `function`, for all calls, so that it is traced once."""
        state = function.extensions.get(cls) or cls(model, function)
        function.extensions[cls] = state
        return state

    def _variables(self) -> list[Any]:
        own = {id(v) for v in self._model.non_trainable_variables}
        metrics = {id(v) for metric in self._model.metrics for v in metric.variables}
        return [
            v
            for key, v in self._steps.assigned.items()
            if key in own - metrics - self._steps.invariant
            and v.dtype.startswith(("float", "bfloat"))
        ]

    def _build(self, variables: list[Any]) -> Any:
        strategy, replicas = self._steps.plan.strategy, self._steps.plan.topology.total

        def on_replica() -> None:
            totals = reduce_sum([tf.convert_to_tensor(v.value) for v in variables])
            for variable, total in zip(variables, totals, strict=True):
                variable.assign(total / tf.cast(replicas, total.dtype))

        return tf.function(lambda: strategy.run(on_replica), autograph=False)
