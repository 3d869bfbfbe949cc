"""Metrics over the samples of all replicas, read when somebody looks.

Each replica keeps its own counts. A reading adds the counts up in one packed all-reduce
per dtype and lets Keras compute the results from the sums: exact, not a mean of means.
Every worker must read at the same step; `phalanx.training.cadence` sees to that.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from phalanx.data.place import this_replica
from phalanx.gradients.reduce import reduce_sum
from phalanx.training.step import Outputs, StepFunction


class MetricReader:
    """Reads a model's metrics, and what its custom step returned, over all replicas."""

    def __init__(self, model: Any, function: StepFunction) -> None:
        """Read the metrics of `model` that the steps of `function` update."""
        self._model = model
        self._steps = function
        self._strategy = function.plan.strategy
        self._place = function.plan.place
        self._function: Any = None
        self._read_variables: tuple[int, ...] = ()

    def read(self, outputs: Outputs, note: float = 0.0) -> tuple[dict[str, float], float]:
        """The logs of the step that returned `outputs`, equal on every worker.

        A value that a metric reports is taken from it, if the step updated that metric.
        Any other value of a custom step is the mean over the replicas, weighted by their
        samples.

        Args:
            outputs: the last step's, from `StepFunction`.
            note: a number that the chief tells all workers by the way.

        Returns:
            The logs, and the chief's note.
        """
        variables = self._metric_variables()
        identity = tuple(id(v) for v in variables)
        if self._function is None or identity != self._read_variables:
            self._function = self._build(variables)
            self._read_variables = identity
        logs, note_of_chief = self._function(outputs, tf.constant(note, tf.float32))
        return {name: _number(value) for name, value in logs.items()}, float(note_of_chief)

    def _metric_variables(self) -> list[Any]:
        found = {id(v): v for metric in self._model.metrics for v in metric.variables}
        return list(found.values())

    def _build(self, variables: list[Any]) -> Any:
        def on_replica(outputs: Outputs, note: tf.Tensor) -> tuple[Any, tf.Tensor]:
            count, returned = outputs[this_replica() - self._place.first]
            return self._combine(variables, count, returned, note)

        def read(outputs: Outputs, note: tf.Tensor) -> tuple[Any, tf.Tensor]:
            per_replica = self._strategy.run(on_replica, args=(outputs, note))
            first: tuple[Any, tf.Tensor] = tf.nest.map_structure(
                lambda v: self._strategy.experimental_local_results(v)[0], per_replica
            )
            return first

        plain = tf.autograph.experimental.do_not_convert(read)
        return plain if self._model.run_eagerly else tf.function(plain, reduce_retracing=True)

    def _combine(
        self, variables: list[Any], count: tf.Tensor, returned: Any, note: tf.Tensor
    ) -> tuple[dict[str, Any], tf.Tensor]:
        states = [tf.convert_to_tensor(v.value) for v in variables]
        own = _flat(returned) if isinstance(returned, dict) else {}
        weight = tf.cast(count, tf.float32)
        weighted = {name: tf.cast(value, tf.float32) * weight for name, value in own.items()}
        if self._place.total > 1:
            chief = 1.0 if self._place.is_chief else 0.0
            # Every local replica adds the note, so the chief's counts `local` times.
            note = note * chief / self._place.local
            note, weight, *sums = reduce_sum([note, weight, *weighted.values(), *states])
            weighted = dict(zip(weighted, sums[: len(weighted)], strict=True))
            states = _aggregate(variables, sums[len(weighted) :], self._place.total)
        with keras.StatelessScope(state_mapping=list(zip(variables, states, strict=True))):
            results = dict(self._model.get_metrics_result())
            stale = self._stale_names()
        if not own:
            return results, note
        fresh = {name: value for name, value in results.items() if name not in stale}
        means = {name: value / weight for name, value in weighted.items()}
        return {name: fresh.get(name, means.get(name)) for name in own}, note

    def _stale_names(self) -> set[str]:
        """Names of results of metrics that the steps never update."""
        names: set[str] = set()
        for metric in self._model.metrics:
            if not any(id(v) in self._steps.assigned for v in metric.variables):
                result = metric.result()
                names.update(result if isinstance(result, dict) else [metric.name])
        return names


def reader_of(model: Any, function: StepFunction) -> MetricReader:
    """The reader for `function`: one for all calls, so that it is traced once."""
    companions = function.companions
    reader = companions.get(MetricReader) or MetricReader(model, function)
    companions[MetricReader] = reader
    return reader


def _aggregate(variables: list[Any], sums: list[Any], replicas: int) -> list[Any]:
    return [
        total / tf.cast(replicas, total.dtype) if variable.aggregation == "mean" else total
        for variable, total in zip(variables, sums, strict=True)
    ]


def _flat(logs: dict[str, Any]) -> dict[str, Any]:
    """Logs without the inner dictionaries that compiled metrics return."""
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        flat.update(_flat(value) if isinstance(value, dict) else {name: value})
    return flat


def _number(value: Any) -> Any:
    array = value.numpy() if hasattr(value, "numpy") else value
    return float(array) if getattr(array, "ndim", 0) == 0 else array
