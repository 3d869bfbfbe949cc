"""Metrics over the samples of all replicas, read when somebody looks.

Each replica keeps its own counts. A reading adds the counts up in one packed all-reduce
per dtype and lets Keras compute the results from the sums: exact, not a mean of means.
Every worker must read at the same step; `phalanx.training.metrics_schedule` sees to that.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from phalanx.distributed.topology import replica_id_in_group
from phalanx.gradients.all_reduce import reduce_sum
from phalanx.monitoring.flight_recorder import flight
from phalanx.training.step_function import Outputs, StepFunction, flat_logs

Notes = tuple[float, float, float, float, float]
"""The next step to read at, the next to time, two yes or no (see `StepTimer`), and the steps of an
execution."""

NO_NOTES: Notes = (0.0, 0.0, 0.0, 0.0, 0.0)


class MetricReader:
    """Reads a model's metrics, and what its custom step returned, over all replicas."""

    def __init__(self, model: Any, function: StepFunction) -> None:
        """Read the metrics of `model` that the steps of `function` update."""
        self._model = model
        self._steps = function
        self._strategy = function.plan.strategy
        self._topology = function.plan.topology
        self._function: Any = None
        self._read_variables: tuple[int, ...] = ()
        self._own_function: Any = None
        self._own_variables: tuple[int, ...] = ()

    def read(
        self, outputs: Outputs, notes: Notes = NO_NOTES
    ) -> tuple[dict[str, float], tuple[float, ...]]:
        """The logs of the step that returned `outputs`, equal on every worker.

        A value that a metric gave as its result is taken from that metric.
        Any other value of a custom step is the mean over the replicas, weighted by their
        samples.

        Args:
            outputs: the last step's, from `StepFunction`.
            notes: numbers that the chief broadcasts in the same collective, as float32.

        Returns:
            The logs, and the chief's notes.
        """
        variables = self._metric_variables()
        identity = tuple(id(v) for v in variables)
        if self._function is None or identity != self._read_variables:
            self._function = self._build(variables)
            self._read_variables = identity
        with self._reading(variables):
            logs, of_chief = self._function(outputs, tf.constant(notes, tf.float32))
            notes_of_chief = tuple(float(note) for note in of_chief.numpy())
        return {name: _number(value) for name, value in logs.items()}, notes_of_chief

    def read_local(self, outputs: Outputs) -> dict[str, float]:
        """The same over the replicas of this process alone; no peer is asked.

        Args:
            outputs: the last step's, from `StepFunction`.
        """
        variables = self._metric_variables()
        identity = tuple(id(v) for v in variables)
        if self._own_function is None or identity != self._own_variables:
            self._own_function = self._build_own(variables)
            self._own_variables = identity
        logs = self._own_function(outputs)
        return {name: _number(value) for name, value in logs.items()}

    def _reading(self, variables: list[Any]) -> AbstractContextManager[Any]:
        if not self._topology.has_peers:
            return nullcontext()
        return flight.collective("reading of the metrics", _bytes(variables))

    def _metric_variables(self) -> list[Any]:
        metrics = [*self._model.metrics, *(r.metric for r in self._steps.results.values())]
        found = {id(v): v for metric in metrics for v in metric.variables}
        return list(found.values())

    def _build(self, variables: list[Any]) -> Any:
        def on_replica(outputs: Outputs, notes: tf.Tensor) -> tuple[Any, tf.Tensor]:
            count, returned = outputs[replica_id_in_group() - self._topology.first]
            return self._combine(variables, count, returned, notes)

        def read(outputs: Outputs, notes: tf.Tensor) -> tuple[Any, tf.Tensor]:
            per_replica = self._strategy.run(on_replica, args=(outputs, notes))
            first: tuple[Any, tf.Tensor] = tf.nest.map_structure(
                lambda v: self._strategy.experimental_local_results(v)[0], per_replica
            )
            return first

        return self._steps.compile_like_model(read)

    def _build_own(self, variables: list[Any]) -> Any:
        local = self._topology.local

        def on_replica(outputs: Outputs) -> Any:
            count, returned = outputs[replica_id_in_group() - self._topology.first]
            return self._counted(variables, count, returned)

        def read_local(outputs: Outputs) -> dict[str, Any]:
            per_replica = self._strategy.run(on_replica, args=(outputs,))
            weight, weighted, states = tf.nest.map_structure(
                lambda v: sum(self._strategy.experimental_local_results(v)), per_replica
            )
            states = _aggregate(variables, states, local)
            return self._results(variables, weight, weighted, states)

        return self._steps.compile_like_model(read_local)

    def _combine(
        self, variables: list[Any], count: tf.Tensor, returned: Any, notes: tf.Tensor
    ) -> tuple[dict[str, Any], tf.Tensor]:
        weight, weighted, states = self._counted(variables, count, returned)
        if self._topology.total > 1:
            chief = 1.0 if self._topology.is_chief else 0.0
            # Every local replica adds the notes, so the chief's count `local` times.
            notes = notes * chief / self._topology.local
            names = ["notes", "samples", *weighted, *(v.path for v in variables)]
            notes, weight, *sums = reduce_sum(
                [notes, weight, *weighted.values(), *states], names, what="metrics", in_step=False
            )
            weighted = dict(zip(weighted, sums[: len(weighted)], strict=True))
            states = _aggregate(variables, sums[len(weighted) :], self._topology.total)
        return self._results(variables, weight, weighted, states), notes

    def _counted(
        self, variables: list[Any], count: tf.Tensor, returned: Any
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor], list[tf.Tensor]]:
        """What one replica counted, to be added up: samples, values by them, metrics."""
        own = flat_logs(returned) if isinstance(returned, dict) else {}
        weight = tf.cast(count, tf.float32)
        weighted = {name: tf.cast(value, tf.float32) * weight for name, value in own.items()}
        return weight, weighted, [tf.convert_to_tensor(v.value) for v in variables]

    def _results(
        self, variables: list[Any], weight: tf.Tensor, weighted: dict[str, Any], states: list[Any]
    ) -> dict[str, Any]:
        """The logs, from what was added up."""
        with keras.StatelessScope(state_mapping=list(zip(variables, states, strict=True))):
            # A metric may return its variable, which is the sum in this scope alone.
            results: dict[str, Any] = dict(self._model.get_metrics_result())
            if weighted and weighted.keys() == results.keys():  # Keras then reports the metrics
                updated = self._updated_names()
                results = {name: value for name, value in results.items() if name in updated}
            elif weighted:
                results = {}
            results |= {name: result.compute() for name, result in self._steps.results.items()}
            results = keras.tree.map_structure(tf.convert_to_tensor, results)
        means = {name: value / weight for name, value in weighted.items()}
        return means | results

    def _updated_names(self) -> set[str]:
        """Names of results of metrics that the steps update.

        Of several metrics of one name the last one counts, as in `get_metrics_result`: a model's
        own "loss" comes after the tracker that `compile` makes.
        """
        updated: set[str] = set()
        for metric in self._model.metrics:
            result = metric.result()
            names = set(result) if isinstance(result, dict) else {metric.name}
            is_updated = any(id(v) in self._steps.assigned for v in metric.variables)
            updated = updated | names if is_updated else updated - names
        return updated


def reader_of(model: Any, function: StepFunction) -> MetricReader:
    """The reader for `function`: one for all calls, so that it is traced once."""
    extensions = function.extensions
    reader = extensions.get(MetricReader) or MetricReader(model, function)
    extensions[MetricReader] = reader
    return reader


def _aggregate(variables: list[Any], sums: list[Any], replicas: int) -> list[Any]:
    return [
        total / tf.cast(replicas, total.dtype) if variable.aggregation == "mean" else total
        for variable, total in zip(variables, sums, strict=True)
    ]


def _bytes(variables: list[Any]) -> int:
    if not flight.is_open:
        return 0
    return sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables)


def _number(value: Any) -> Any:
    array = value.numpy() if hasattr(value, "numpy") else value
    return float(array) if getattr(array, "ndim", 0) == 0 else array
