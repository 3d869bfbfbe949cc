"""`predict`: every row once, in order, on every worker."""

from __future__ import annotations

from collections.abc import Sequence
from types import GeneratorType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.callbacks.progress import EvaluationProgress
from phalanx.data.shared_generator import next_batches
from phalanx.distributed.host_collectives import all_gather_arrays
from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import DataError, TrainingError
from phalanx.keras_compat.model_access import concat_batches, keras_predict
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
from phalanx.training.step_function import Outputs


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
        NumPy predictions in the structure of the model's output, in the order of the data, all
        of them on every worker; a RaggedTensor where batches differ in another axis than that
        of the rows, as Keras gives it.

    Raises:
        DataError: there was no batch to predict.
        TrainingError: there are several replicas, and their outputs, such as sparse or ragged
            ones, cannot be put together.
    """
    if trains_on_servers(model):
        return predict_on_servers(
            model, x, batch_size=batch_size, verbose=verbose, steps=steps, callbacks=callbacks
        )
    with call_context(model) as stage:
        if not tf.distribute.has_strategy():
            if isinstance(x, GeneratorType):
                x = next_batches(x, _most_batches(model, steps))
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


def _most_batches(model: Any, steps: int | None) -> int | None:
    """How many batches Keras's own loop takes for `steps`: full executions."""
    chunk = int(model.steps_per_execution or 1)
    return None if steps is None else -(-steps // chunk) * chunk


class Predictions:
    """What this process's replicas predicted, batch by batch."""

    def __init__(self, topology: ReplicaTopology) -> None:
        """Begin with no batch.

        Args:
            topology: this process's replicas.
        """
        self._topology = topology
        self._counts: list[list[int]] = []
        self._structure: Any = None
        self._leaves: list[list[np.ndarray]] = []

    def add(self, outputs: Outputs) -> Any:
        """Take what the replicas of this process returned for one batch.

        Returns:
            The rows of this process's replicas, for callbacks.

        Raises:
            TrainingError: the outputs of several replicas cannot be put together.
        """
        several = self._topology.total > 1
        parts = [_without_stand_ins(count, output, several=several) for count, output in outputs]
        flat = [keras.tree.flatten(part) for part in parts]
        self._structure = parts[0]
        counts = [int(count) for count, _ in outputs]
        self._counts.append(counts)
        if not self._leaves:
            self._leaves = [[] for _ in flat[0]]
        together = []
        for found, leaf in zip(self._leaves, zip(*flat, strict=True), strict=True):
            found.extend(leaf)
            together.append(_one_batch(leaf, counts))
        return keras.tree.pack_sequence_as(self._structure, together)

    def merge(self, stage: CallContext) -> Any:
        """All replicas' rows, in the order of the data; a collective that all workers must call.

        Raises:
            DataError: there was no batch.
            TrainingError: replicas' outputs for one batch differ in another axis than that of the
            rows.
        """
        if not self._counts:
            raise DataError("Asked to predict, but the data gave no batch. Pass at least one.")
        mine = [array for leaf in self._leaves for array in _packed(leaf)]
        mine.append(np.array(self._counts, np.int64))
        everyone = all_gather_arrays(stage.strategy, stage.topology, mine)
        counts = np.concatenate([worker[-1] for worker in everyone], axis=1).tolist()
        merged = []
        for number in range(len(self._leaves)):
            by_worker = [_unpacked(*worker[2 * number : 2 * number + 2]) for worker in everyone]
            merged.append(concat_batches(_batches(by_worker, counts, self._topology.local)))
        return keras.tree.pack_sequence_as(self._structure, merged)


def _predict_share(stage: CallContext, function: Any, stream: Any, callbacks: Any) -> Predictions:
    model = stage.model
    model.stop_predicting = False
    predictions = Predictions(stage.topology)
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
            last = predictions.add(function.on_batch(element))
            stream.took(done + 1)
        if last is None:
            continue
        callbacks.on_predict_batch_end(step + size - 1, {"outputs": last})
        if model.stop_predicting:
            break
    callbacks.on_predict_end()
    return predictions


def _without_stand_ins(count: tf.Tensor, output: Any, *, several: bool) -> Any:
    """One replica's output as arrays: every row of it, none if the replica had no rows.

    A model may return more or fewer rows than it was given, so they are not counted here.
    """

    def cut(value: Any) -> Any:
        if not isinstance(value, tf.Tensor):
            raise TrainingError(
                f"Asked to predict with several replicas; the output is a {type(value).__name__}, "
                "which cannot be gathered. Predict on one device: phalanx run --workers 1."
            )
        if value.shape.rank == 0:
            if several and not value.dtype.is_floating:
                raise TrainingError(
                    f"Asked to predict with several replicas; an output is one {value.dtype.name} "
                    "for all rows of a batch, and each replica computes it from its own rows. "
                    "Return one value for each row, or predict on one device: "
                    "phalanx run --workers 1."
                )
            return value.numpy()
        return value.numpy() if int(count) > 0 else value.numpy()[:0]

    return keras.tree.map_structure(cut, output)


def _packed(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Arrays of one dtype and rank, as their shapes and all their values, one after the other."""
    shapes = np.array([array.shape for array in arrays], np.int64)
    return shapes, np.concatenate([array.reshape(-1) for array in arrays])


def _unpacked(shapes: np.ndarray, values: np.ndarray) -> list[np.ndarray]:
    """What `_packed` was given."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    parts = np.split(values, ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def _batches(
    by_worker: Sequence[Sequence[np.ndarray]], counts: Sequence[Sequence[int]], local: int
) -> list[np.ndarray]:
    """One array a batch, from what each worker's replicas returned for each batch.

    Args:
        by_worker: by rank, the arrays of the worker's replicas for the first batch, then for the
            second, and so on.
        counts: of each batch, how many samples each replica had.
        local: how many replicas a worker has.
    """
    found = []
    for batch, rows in enumerate(counts):
        parts = [part for of in by_worker for part in of[batch * local : (batch + 1) * local]]
        found.append(_one_batch(parts, rows))
    return found


def _one_batch(parts: Sequence[np.ndarray], rows: Sequence[int]) -> np.ndarray:
    """Replicas' outputs for one batch, put together; `rows` are those that each was given.

    One number for all rows of a batch is the mean over the replicas, weighed by their rows:
    the step has multiplied what is a sum.

    Raises:
        TrainingError: the shapes differ in another axis than that of the rows.
    """
    arrays = [part for part, count in zip(parts, rows, strict=True) if count > 0]
    weights = [count for count in rows if count > 0]
    if not arrays:
        return parts[0]
    if len(arrays) == 1:
        return arrays[0]
    if arrays[0].ndim == 0:
        mean = np.average(np.stack(arrays).astype(np.float64), weights=weights)
        return np.asarray(mean, arrays[0].dtype)
    shapes = sorted({array.shape[1:] for array in arrays})
    if len(shapes) > 1:
        raise TrainingError(
            "Asked to predict with several replicas; for one batch their outputs have the shapes "
            f"{', '.join(str(('rows', *shape)) for shape in shapes)}: the model computes a length "
            "from the rows of its part. Pad to a length that does not depend on the rows, or "
            "predict on one device: phalanx run --workers 1."
        )
    return np.concatenate(arrays)
