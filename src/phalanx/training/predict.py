"""`predict`: every row once, in order, on every worker."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.callbacks.progress import EvaluationProgress
from phalanx.distributed.host_collectives import all_gather_arrays
from phalanx.distributed.topology import ReplicaTopology, rows_of
from phalanx.errors import DataError, TrainingError
from phalanx.keras_compat.model_access import keras_predict
from phalanx.monitoring.phase_tracker import phase_tracker
from phalanx.training.callbacks import callback_list
from phalanx.training.context import (
    CallContext,
    call_context,
    make_function,
    make_stream,
    open_source,
)
from phalanx.training.parameter_server.predict import predict_on_servers
from phalanx.training.parameter_server.ps_context import trains_on_servers


def predict(
    model: Any,
    x: Any,
    batch_size: int | None = None,
    verbose: int | str = "auto",
    steps: int | None = None,
    callbacks: Any = None,
) -> Any:
    """What `keras.Model.predict` does, right under every synchronous strategy.

    Args:
        model: a Keras model.
        x: the global data, on every worker; each predicts its share.
        batch_size: samples of a global batch, for arrays.
        verbose: 0, 1, 2 or "auto"; only the chief prints.
        steps: batches to predict; all where None.
        callbacks: Keras callbacks, run on every worker.

    Returns:
        NumPy predictions in the structure of the model's output, one row a sample in the
        order of the data, all of them on every worker.

    Raises:
        DataError: there was no batch to predict.
        TrainingError: the output is sparse or ragged, and there are several replicas.
    """
    if trains_on_servers(model):
        return predict_on_servers(
            model, x, batch_size=batch_size, verbose=verbose, steps=steps, callbacks=callbacks
        )
    with call_context(model) as stage:
        if not tf.distribute.has_strategy():
            return keras_predict(
                model, x, batch_size=batch_size, verbose=verbose, steps=steps, callbacks=callbacks
            )
        source = open_source(stage, "predict", 0, x, None, batch_size=batch_size, steps=steps)
        if not source.counted:
            raise DataError(
                "Asked to predict a distributed dataset, whose order cannot be restored. Pass "
                "the tf.data.Dataset that it was made from."
            )
        stream = make_stream(stage, source, steps)
        listed = callback_list(
            stage,
            callbacks,
            verbose=verbose,
            epochs=1,
            steps=stream.steps,
            display=EvaluationProgress,
        )
        function = make_function(stage, "predict", source)
        with phase_tracker.during("compute"):
            return _predict_share(stage, function, stream, listed).merge(stage)


class _Predictions:
    """What this process's replicas predicted, batch by batch."""

    def __init__(self) -> None:
        self._totals: list[int] = []
        self._structure: Any = None
        self._leaves: list[list[Any]] = []

    def add(self, total: int, outputs: Any) -> Any:
        """Take one batch's outputs, without stand-in rows."""
        self._totals.append(total)
        parts = [_only_real_rows(count, output) for count, output in outputs]
        self._structure = parts[0]
        flat = [keras.tree.flatten(part) for part in parts]
        self._leaves.append([np.concatenate(leaf) for leaf in zip(*flat, strict=True)])
        return keras.tree.pack_sequence_as(self._structure, self._leaves[-1])

    def merge(self, stage: CallContext) -> Any:
        """All replicas' rows, in the order of the data."""
        if not self._totals:
            raise DataError("Asked to predict, but the data gave no batch. Pass at least one.")
        mine = [np.concatenate(leaf) for leaf in zip(*self._leaves, strict=True)]
        everyone = all_gather_arrays(stage.strategy, stage.topology, mine)
        merged = [
            _interleave([worker[i] for worker in everyone], self._totals, stage.topology)
            for i in range(len(mine))
        ]
        return keras.tree.pack_sequence_as(self._structure, merged)


def _predict_share(stage: CallContext, function: Any, stream: Any, callbacks: Any) -> _Predictions:
    model = stage.model
    model.stop_predicting = False
    predictions = _Predictions()
    callbacks.on_predict_begin()
    for step, size, iterator in stream.epoch():
        phase_tracker.enter("compute")  # again: it continues
        callbacks.on_predict_batch_begin(step)
        last = None
        for done in range(size):
            try:
                element = next(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                stream.reached_end(steps_done=done)
                break
            last = predictions.add(int(element[0]), function.on_batch(element))
        if last is None:
            continue
        callbacks.on_predict_batch_end(step + size - 1, {"outputs": last})
        if model.stop_predicting:
            break
    callbacks.on_predict_end()
    return predictions


def _only_real_rows(count: tf.Tensor, output: Any) -> Any:
    def cut(value: Any) -> Any:
        if not isinstance(value, tf.Tensor):
            raise TrainingError(
                f"Asked to predict with several replicas; the output is a {type(value).__name__}, "
                "which cannot be gathered. Predict on one device: phalanx run --workers 1."
            )
        return value.numpy()[: int(count)]

    return keras.tree.map_structure(cut, output)


def _interleave(by_worker: list[Any], totals: list[int], topology: ReplicaTopology) -> Any:
    """Rows of global batches, from each worker's rows of all batches."""
    taken = [0] * len(by_worker)
    pieces = []
    for total in totals:
        for worker in range(len(by_worker)):
            rows = _rows_of_worker(worker, total, topology)
            pieces.append(by_worker[worker][taken[worker] : taken[worker] + rows])
            taken[worker] += rows
    return np.concatenate(pieces)


def _rows_of_worker(worker: int, total: int, topology: ReplicaTopology) -> int:
    replicas = range(worker * topology.local, (worker + 1) * topology.local)
    return sum(rows_of(replica, topology.total, total)[1] for replica in replicas)
