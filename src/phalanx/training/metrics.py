"""Metrics over the samples of all replicas, read when somebody looks.

Each replica keeps its own counts. A reading adds the counts up in one packed all-reduce
per dtype and lets Keras compute the results from the sums: exact, not a mean of means.
Every worker must read at the same step; `phalanx.training.metrics_schedule` sees to that.

After the last reading of an epoch, an evaluation or a single batch the sums are assigned to the
metrics themselves, for code that asks them. Then every worker holds the whole, which must not be
added up again: `share_out` comes before the metrics count on.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.checkpoint.replica_values import local_key, replica_components
from phalanx.distributed.topology import ReplicaTopology, replica_id_in_group
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
        self, outputs: Outputs, notes: Notes = NO_NOTES, *, is_last: bool = False
    ) -> tuple[dict[str, float], tuple[float, ...]]:
        """The logs of the step that returned `outputs`, equal on every worker.

        A value that a metric gave as its result is taken from that metric, and one that the step
        computes of such results alone is computed again. Any other value of a custom step is the
        mean over the replicas, weighted by their samples.

        Args:
            outputs: the last step's, from `StepFunction`.
            notes: numbers that the chief broadcasts in the same collective, as float32.
            is_last: whether the metrics count nothing more before they are reset, and are to hold
                what all replicas have counted.

        Returns:
            The logs, and the chief's notes.
        """
        share_out(self._model, self._topology)
        variables = self._metric_variables()
        identity = tuple(id(v) for v in variables)
        if self._function is None or identity != self._read_variables:
            self._function = self._build(variables)
            self._read_variables = identity
        with self._reading(variables):
            logs, of_chief, states = self._function(outputs, tf.constant(notes, tf.float32))
            notes_of_chief = tuple(float(note) for note in of_chief.numpy())
        if is_last and self._topology.total > 1:
            self._hold(variables, states)
        return {name: _number(value) for name, value in logs.items()}, notes_of_chief

    def _hold(self, variables: list[Any], states: list[Any]) -> None:
        """Have the metrics that the steps update hold the sums over all replicas."""
        held = []
        for variable, state in zip(variables, states, strict=True):
            if id(variable) in self._steps.assigned:
                _assign_whole(variable, state)
                held.append(variable)
        _wholes[self._model] = held

    def read_local(self, outputs: Outputs) -> dict[str, float]:
        """The same over the replicas of this process alone; no peer is asked.

        Args:
            outputs: the last step's, from `StepFunction`.
        """
        share_out(self._model, self._topology)
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
        returned = [m for result in self._steps.results.values() for m in result.metrics]
        metrics = [*self._model.metrics, *returned]
        found = {id(v): v for metric in metrics for v in metric.variables}
        return list(found.values())

    def _build(self, variables: list[Any]) -> Any:
        def on_replica(outputs: Outputs, notes: tf.Tensor) -> tuple[Any, tf.Tensor, list[Any]]:
            count, returned = outputs[replica_id_in_group() - self._topology.first]
            return self._combine(variables, count, returned, notes)

        def read(outputs: Outputs, notes: tf.Tensor) -> tuple[Any, tf.Tensor, list[Any]]:
            per_replica = self._strategy.run(on_replica, args=(outputs, notes))
            first: tuple[Any, tf.Tensor, list[Any]] = tf.nest.map_structure(
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
    ) -> tuple[dict[str, Any], tf.Tensor, list[Any]]:
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
        return self._results(variables, weight, weighted, states), notes, states

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


_wholes: weakref.WeakKeyDictionary[Any, Sequence[Any]] = weakref.WeakKeyDictionary()
"""By model, the variables of its metrics that hold the sums over all replicas on every worker."""


def share_out(model: Any, topology: ReplicaTopology) -> None:
    """Have the first replica alone hold what every worker holds, before the metrics count on.

    Nothing happens where metrics hold each replica's own counts.
    """
    for variable in _wholes.pop(model, ()):
        for replica, copy in enumerate(replica_components(variable), start=topology.first):
            if replica > 0 and variable.aggregation != "mean":
                copy.assign(tf.zeros_like(copy))


def forget_wholes(model: Any) -> None:
    """Each replica's own counts were assigned to the model's metrics."""
    _wholes.pop(model, None)


def own_shares(
    model: Any,
    named: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    topology: ReplicaTopology,
) -> dict[str, np.ndarray]:
    """`arrays`, the replicas' copies, such that they add up where each worker holds the whole.

    Args:
        model: the model.
        named: the variables of its metrics, by name.
        arrays: the copies of this process, from `local_arrays`.
        topology: this process's replicas.
    """
    wholes = {id(v) for v in _wholes.get(model, ()) if v.aggregation != "mean"}
    shares = dict(arrays)
    for name, variable in named.items():
        for replica in range(topology.first, topology.first + topology.local):
            key = local_key(replica, name)
            if replica > 0 and id(variable) in wholes and key in shares:
                shares[key] = np.zeros_like(shares[key])
    return shares


def _assign_whole(variable: Any, state: Any) -> None:
    """Have every reading of a metric's variable on this process give `state`."""
    copies = replica_components(variable)
    is_added_up = variable.synchronization == "on_read" and variable.aggregation == "sum"
    for i, copy in enumerate(copies):
        value = tf.cast(state, copy.dtype)
        copy.assign(tf.zeros_like(value) if i and is_added_up else value)


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
