"""Keras's data adapters: whatever `fit` takes, as global batches.

Private names used: `keras.src.trainers.data_adapters.get_data_adapter`, the attributes
`_inputs`, `_num_samples`, `_batch_size`, `_shuffle` of its `ArrayDataAdapter`, and
`array_slicing` (validation split; pandas, sparse and ragged arrays as tensors). The adapter of a
Python generator calls its attribute `generator` for the elements of each pass; the attribute
`shuffle` of a PyDataset's says whether it shuffles the batches by `random` as a pass begins, and
`enqueuer` is not None where it has `workers`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_ADAPTERS = "keras.src.trainers.data_adapters"


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """In-memory samples: `inputs` is a structure of tensors with equal first dimensions."""

    inputs: Any
    num_samples: int
    batch_size: int
    shuffle: bool | str


def adapt(
    x: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    batch_size: int | None = None,
    steps: int | None = None,
    shuffle: bool | str = False,
    class_weight: dict[int, float] | None = None,
) -> Any:
    """Keras's adapter for the data; raises Keras's own errors for what it cannot take."""
    return importlib.import_module(_ADAPTERS).get_data_adapter(
        x=x,
        y=y,
        sample_weight=sample_weight,
        batch_size=batch_size,
        steps_per_epoch=steps,
        shuffle=shuffle,
        class_weight=class_weight,
    )


def take_passes_from(adapter: Any, passes: Callable[[], Iterator[Any]]) -> None:
    """Let the adapter of a generator call `passes` for the elements of each pass.

    Raises:
        AttributeError: Keras keeps the generator elsewhere.
    """
    if not callable(adapter.generator):
        raise AttributeError(f"{type(adapter).__name__}.generator is not called for each pass")
    adapter.generator = passes


def draws_order(adapter: Any) -> bool:
    """Whether the adapter draws the order of each pass from Python's `random`: a PyDataset's."""
    kind = importlib.import_module(_ADAPTERS).PyDatasetAdapter
    return isinstance(adapter, kind) and bool(adapter.shuffle) and adapter.num_batches is not None


def reads_ahead(adapter: Any) -> bool:
    """Whether threads or processes of a PyDataset's own make its batches, from one epoch's begin
    to its end: a dataset that reads it ahead would ask for batches outside an epoch."""
    kind = importlib.import_module(_ADAPTERS).PyDatasetAdapter
    return isinstance(adapter, kind) and adapter.enqueuer is not None


def arrays_of(adapter: Any) -> Arrays | None:
    """The arrays behind `adapter`, or None when it adapts something else."""
    if not isinstance(adapter, importlib.import_module(_ADAPTERS).ArrayDataAdapter):
        return None
    slicing = importlib.import_module(f"{_ADAPTERS}.array_slicing")
    inputs = slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow")
    with tf.device("CPU:0"):  # tf.data reads from the host
        inputs = keras.tree.map_structure(
            lambda a: a if a is None or tf.is_tensor(a) else tf.convert_to_tensor(np.asarray(a)),
            inputs,
        )
    return Arrays(
        inputs=keras.tree.lists_to_tuples(inputs),
        num_samples=int(adapter._num_samples),
        batch_size=int(adapter._batch_size),
        shuffle=adapter._shuffle,
    )


def take_rows(inputs: Any, rows: tf.Tensor) -> Any:
    """The samples at `rows` (1-D int64) of `Arrays.inputs`."""
    slicing = importlib.import_module(f"{_ADAPTERS}.array_slicing")

    def take(value: Any) -> Any:
        if isinstance(value, slicing.TensorflowSparseWrapper):
            return slicing.slice_tensorflow_sparse_wrapper(value, rows)
        if isinstance(value, (list, tuple, dict)):
            return None  # continue into it
        return tf.gather(value, rows, axis=0) if tf.is_tensor(value) else value

    return keras.tree.traverse(take, inputs)


def shuffled_rows(arrays: Arrays) -> np.ndarray:
    """The order in which Keras's `fit` takes the samples of `arrays`, under the global seed.

    Keras shuffles by `tf.random.shuffle` in a `tf.data` map, whose kernel restarts with every
    iterator: with a global seed, each epoch and each `fit` have the same order.

    Returns:
        The number of each sample, int64, shape (num_samples,).
    """
    within_batches = arrays.shuffle == "batch"
    numbers = adapt(
        np.arange(arrays.num_samples),
        batch_size=arrays.batch_size if within_batches else arrays.num_samples,
        shuffle=arrays.shuffle,
    )
    batches = [np.ravel(keras.tree.flatten(batch)[0]) for batch in numbers.get_tf_dataset()]
    return np.concatenate(batches)


def spec_of(inputs: Any) -> Any:
    """Shapes and dtypes of `Arrays.inputs`."""
    slicing = importlib.import_module(f"{_ADAPTERS}.array_slicing")

    def spec(value: Any) -> Any:
        if isinstance(value, slicing.TensorflowSparseWrapper):
            rows = tf.constant([0], tf.int64)
            return tf.type_spec_from_value(slicing.slice_tensorflow_sparse_wrapper(value, rows))
        if isinstance(value, (list, tuple, dict)):
            return None  # continue into it
        return tf.type_spec_from_value(value) if value is not None else None

    return keras.tree.traverse(spec, inputs)


def split_validation(arrays: Any, fraction: float) -> tuple[Any, Any]:
    """(training, validation) of `(x, y, sample_weight)`; the last samples validate."""
    slicing = importlib.import_module(f"{_ADAPTERS}.array_slicing")
    training, validation = slicing.train_validation_split(arrays, validation_split=fraction)
    return training, validation
