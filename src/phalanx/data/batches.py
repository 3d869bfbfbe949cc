"""Global batches as `tf.data`, each cut into the shares of this process's replicas.

Every element is `(total, parts)`: `total` counts the samples of the global batch (scalar
int32), and `parts` holds one `(count, data)` per local replica. A replica without samples
gets count 0 and one row that stands in, since layers need not accept empty batches.

Every worker walks the same global order, so all agree on where it ends without asking.
"""

from __future__ import annotations

from typing import Any, Protocol

import keras
import tensorflow as tf

from phalanx.data.fingerprint import fingerprint
from phalanx.data.place import ReplicaPlace, rows_of
from phalanx.seam.adapters import Arrays, spec_of, take_rows

_as_written = tf.autograph.experimental.do_not_convert


class BatchSource(Protocol):
    """Where global batches come from.

    Attributes:
        num_batches: global batches in one pass, None when unknown or endless.
        batch_spec: shapes and dtypes of a global batch as fit's data, batch axis None.
        may_be_empty: whether some replica can end up without samples in some batch.
        endless: whether an open iterator goes on into the next pass by itself.
        counted: whether elements are `(total, parts)`, as described above.
        num_samples: samples in one pass, None where nobody has counted.
        fingerprint: equal where the data is, None where that cannot be told.
    """

    num_batches: int | None
    batch_spec: Any
    may_be_empty: bool
    endless: bool
    counted: bool
    num_samples: int | None
    fingerprint: int | None

    def open(self, position: int) -> Any:
        """An iterator over elements that starts `position` global batches into training."""

    def on_epoch_begin(self) -> None:
        """Called before an epoch takes its first batch."""

    def on_epoch_end(self) -> None:
        """Called after an epoch took its last batch."""


class ArrayBatches:
    """Arrays in memory, in a seeded order that any number of workers shares.

    Sample i of epoch e is a stateless permutation of (seed, e, i), so a worker gathers
    its own rows only, no shuffle buffer is needed, and a position is enough to resume.
    """

    endless = True
    counted = True

    def __init__(self, arrays: Arrays, place: ReplicaPlace, seed: int) -> None:
        self._arrays = arrays
        self._place = place
        self._seed = seed
        self.num_batches: int | None = -(-arrays.num_samples // arrays.batch_size)
        self.num_samples: int | None = arrays.num_samples
        self.fingerprint: int | None = fingerprint(arrays.inputs, arrays.num_samples)
        remainder = arrays.num_samples % arrays.batch_size or arrays.batch_size
        self.may_be_empty = min(remainder, arrays.batch_size) < place.total
        self.batch_spec = with_free_batch_axis(spec_of(arrays.inputs))

    def open(self, position: int) -> Any:
        """An endless iterator: pass after pass, each in its own order."""
        largest = tf.int64.max
        positions = tf.data.Dataset.range(position, largest)
        shares = positions.map(_as_written(self._shares), num_parallel_calls=tf.data.AUTOTUNE)
        return iter(shares.prefetch(tf.data.AUTOTUNE))

    def on_epoch_begin(self) -> None:
        """Nothing to do: the order of an epoch follows from its number."""

    def on_epoch_end(self) -> None:
        """Nothing to do."""

    def _shares(self, position: tf.Tensor) -> Any:
        batch_size = tf.constant(self._arrays.batch_size, tf.int64)
        epoch, batch = position // self.num_batches, position % self.num_batches
        first = batch * batch_size
        total = tf.minimum(batch_size, self._arrays.num_samples - first)
        parts = []
        for replica in range(self._place.first, self._place.first + self._place.local):
            start, count = rows_of(replica, self._place.total, total)
            if self.may_be_empty:
                start = tf.where(count > 0, start, 0)
            rows = start + tf.range(tf.maximum(count, 1))
            order = self._order(epoch, batch, first, total, rows)
            parts.append((tf.cast(count, tf.int32), self._take(order)))
        return tf.cast(total, tf.int32), tuple(parts)

    def _order(self, epoch: Any, batch: Any, first: Any, total: Any, rows: Any) -> Any:
        if self._arrays.shuffle == "batch":
            position = epoch * self.num_batches + batch
            key = tf.stack([tf.cast(self._seed, tf.int64), position])
            return first + tf.random.experimental.index_shuffle(rows, key, total - 1)
        if self._arrays.shuffle:
            key = tf.stack([tf.cast(self._seed, tf.int64), epoch])
            last = tf.constant(self._arrays.num_samples - 1, tf.int64)
            return tf.random.experimental.index_shuffle(first + rows, key, last)
        return first + rows

    def _take(self, rows: tf.Tensor) -> Any:
        return take_rows(self._arrays.inputs, rows)


class DatasetBatches:
    """Any other source, as Keras's adapter gives it: a `tf.data.Dataset` of global batches.

    Every worker runs the whole pipeline and keeps its rows, which is right for every
    dataset whose order is the same on all workers (the launcher seeds them alike).
    """

    endless = False
    counted = True
    num_samples: int | None = None
    fingerprint: int | None = None

    def __init__(self, adapter: Any, place: ReplicaPlace) -> None:
        self._adapter = adapter
        self._place = place
        self._dataset = adapter.get_tf_dataset()
        self.num_batches: int | None = adapter.num_batches
        self.batch_spec = with_free_batch_axis(self._dataset.element_spec)
        batch_size = _static_batch_size(self._dataset.element_spec)
        self.may_be_empty = batch_size is None or batch_size < place.total

    def open(self, position: int) -> Any:
        """A new pass over the dataset; `position` is known to the dataset alone."""
        del position
        shares = self._dataset.map(_as_written(self._shares), num_parallel_calls=tf.data.AUTOTUNE)
        return iter(shares.prefetch(tf.data.AUTOTUNE))

    def on_epoch_begin(self) -> None:
        """Pass the word on: PyDatasets start their workers here."""
        self._adapter.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Pass the word on: PyDatasets shuffle here."""
        self._adapter.on_epoch_end()

    def _shares(self, *batch: Any) -> Any:
        data = batch if len(batch) > 1 else batch[0]
        total = _rows(data)
        parts = []
        for replica in range(self._place.first, self._place.first + self._place.local):
            start, count = rows_of(replica, self._place.total, total)
            if self.may_be_empty:
                start = tf.where(count > 0, start, 0)
            parts.append((count, cut(data, start, tf.maximum(count, 1), self._static_count())))
        return total, tuple(parts)

    def _static_count(self) -> int | None:
        """Rows of every share where they are equal and known: a static shape for XLA."""
        size = _static_batch_size(self._dataset.element_spec)
        return None if size is None or size % self._place.total else size // self._place.total


def cut(data: Any, start: tf.Tensor, count: tf.Tensor, static: int | None = None) -> Any:
    """Rows `start` to `start + count` of every tensor in `data`, sparse and ragged too."""

    def one(value: Any) -> Any:
        if isinstance(value, tf.SparseTensor):
            begin = tf.concat([[start], tf.zeros_like(value.dense_shape[1:], tf.int32)], 0)
            shape = tf.concat([[tf.cast(count, tf.int64)], value.dense_shape[1:]], 0)
            return tf.sparse.slice(value, tf.cast(begin, tf.int64), shape)
        rows = value[start : start + count]
        if static is not None and isinstance(rows, tf.Tensor):
            rows.set_shape([static, *rows.shape[1:]])
        return rows

    return keras.tree.map_structure(one, data)


def with_free_batch_axis(spec: Any) -> Any:
    """`spec` with the first dimension of every tensor unknown."""

    def free(one: Any) -> Any:
        if isinstance(one, tf.TensorSpec):
            return tf.TensorSpec([None, *one.shape[1:]], one.dtype)
        return one

    return keras.tree.map_structure(free, spec)


def _rows(data: Any) -> tf.Tensor:
    first = next(v for v in keras.tree.flatten(data) if v is not None)
    if isinstance(first, tf.SparseTensor):
        return tf.cast(first.dense_shape[0], tf.int32)
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int32)
    return tf.shape(first)[0]


def _static_batch_size(spec: Any) -> int | None:
    first = next(s for s in keras.tree.flatten(spec) if s is not None)
    return first.shape[0] if first.shape.rank else None
