"""Global batches as `tf.data`, each cut into the shares of this process's replicas.

Every element is `(total, parts)`: `total` counts the samples of the global batch (scalar
int32), and `parts` holds one `(count, data)` per local replica. A replica without samples
gets count 0 and rows that stand in, since layers need not accept empty batches: the first row of
the batch, or all of it where the batch is not divided (`phalanx.data.undivided`).

Every worker walks the same global order, so all agree on where it ends without asking.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import keras
import tensorflow as tf

from phalanx.data.iterator_position import DataPosition
from phalanx.distributed.datasets import element_of
from phalanx.distributed.topology import rows_of

no_autograph = tf.autograph.experimental.do_not_convert
"""Python that TensorFlow traces without AutoGraph."""


class BatchSource(Protocol):
    """Where global batches come from.

    Attributes:
        num_batches: global batches in one pass, None when unknown or endless.
        batch_spec: shapes and dtypes of a global batch as fit's data, batch axis None.
        may_be_empty: whether some replica can end up without samples in some batch.
        may_be_undivided: whether the first replica can have all samples of a batch.
        endless: whether an open iterator continues into the next pass on its own.
        counted: whether elements are `(total, parts)`, as described above.
        num_samples: samples in one pass, None where they are not counted.
        batch_size: samples in every batch but the last of a pass, None where unknown.
        full_batch_size: the same, also where it is only what the pipeline asks for.
        length_unknown: whether the end of a pass is unknown until it comes, and workers
            that share it have to ask each other.
        has_state: whether what an open iterator holds can be saved and restored.
        fingerprint: equal where the data is equal, None where that is unknown.
        order: how the samples are ordered, for people; equal where the order is, None where that
            is unknown.
        seed: decides the order, None where the order is the data's own.
    """

    num_batches: int | None
    batch_spec: Any
    may_be_empty: bool
    may_be_undivided: bool
    endless: bool
    counted: bool
    length_unknown: bool
    has_state: bool
    num_samples: int | None
    batch_size: int | None
    full_batch_size: int | None
    fingerprint: int | None
    order: str | None
    seed: int | None

    def open(self, position: int) -> Any:
        """An iterator over elements that starts `position` global batches into training."""

    def reopen(self, position: DataPosition, state: Mapping[str, Any] | None) -> Any:
        """The iterator from `position` on, None where a new pass begins there.

        Args:
            position: where, in an earlier process.
            state: what `phalanx.data.iterator_state` read of that iterator, if anything.
        """

    def open_unread(self) -> None:
        """Open the data and read nothing, as Keras does after each pass of known length.

        Where the data shuffles by a seed, the order of a pass depends on how often the data was
        opened before (`EpochIterator._enumerate_iterator` of Keras).
        """

    def on_epoch_begin(self) -> None:
        """Called before an epoch takes its first batch."""

    def on_epoch_end(self) -> None:
        """Called after an epoch took its last batch."""


def read_over(iterator: Iterator[Any], count: int) -> None:
    """Take the first `count` elements, or all where there are fewer."""
    for _ in itertools.islice(iterator, count):
        pass


def rows_in(value: Any) -> tf.Tensor:
    """How many rows a tensor has along axis 0, sparse and ragged ones too; scalar int32."""
    if isinstance(value, tf.SparseTensor):
        return tf.cast(value.dense_shape[0], tf.int32)
    if isinstance(value, tf.RaggedTensor):
        return tf.cast(value.nrows(), tf.int32)
    return tf.shape(value)[0]


def tensors_of(data: Any) -> list[Any]:
    """The tensors of a batch that have rows; scalars have none."""
    return [v for v in keras.tree.flatten(data) if v is not None and v.shape.rank != 0]


def total_rows(data: Any) -> tf.Tensor:
    """How many rows a batch has: those of its first tensor."""
    return rows_in(tensors_of(data)[0])


def static_rows(data: Any) -> int | None:
    """Rows of the first tensor of `data`, where its shape says it."""
    return next((None if v.shape.rank is None else v.shape[0] for v in tensors_of(data)), None)


def static_share(size: int | None, replica: int, replicas: int) -> int | None:
    """Rows of a replica where all global batches have `size`: at least one, the stand-in row.

    None where they have not.
    """
    return None if size is None else max(rows_of(replica, replicas, size)[1], 1)


def cut(
    data: Any,
    replica: int,
    replicas: int,
    *,
    may_be_empty: bool = True,
    static: int | None = None,
    undivided: Any = False,
) -> tuple[tf.Tensor, Any]:
    """The rows of a replica, of every tensor in `data` by its own number of rows.

    Args:
        data: a global batch; scalars in it are everybody's.
        replica: the replica's number.
        replicas: how many there are.
        may_be_empty: whether a replica can be without rows, and gets a stand-in row.
        static: rows of the replica, where they are known.
        undivided: whether the first replica has all rows, which stand in on the others; scalar
            bool, of Python or TensorFlow.

    Returns:
        How many rows of the first tensor are the replica's, and its part.
    """
    is_first = replica == 0

    def one(value: Any) -> Any:
        if value is None or value.shape.rank == 0:
            return value
        rows = rows_in(value)
        start, count = rows_of(replica, replicas, rows)
        if may_be_empty:
            start, count = tf.where(count > 0, start, 0), tf.maximum(count, 1)
        if undivided is not False:
            start, count = tf.where(undivided, 0, start), tf.where(undivided, rows, count)
        return slice_rows(value, start, count, static)

    if undivided is True:
        return total_rows(data) if is_first else tf.constant(0), data
    total = total_rows(data)
    _, count = rows_of(replica, replicas, total)
    if undivided is not False:
        count = tf.where(undivided, total if is_first else 0, count)
    return count, keras.tree.map_structure(one, data)


def slice_rows(data: Any, start: tf.Tensor, count: tf.Tensor, static: int | None = None) -> Any:
    """Rows `start` to `start + count` of every tensor in `data`, sparse and ragged too.

    Scalars have no rows and are everybody's.
    """

    def one(value: Any) -> Any:
        if value is None or value.shape.rank == 0:
            return value
        if isinstance(value, tf.SparseTensor):
            begin = tf.concat([[start], tf.zeros_like(value.dense_shape[1:], tf.int32)], 0)
            shape = tf.concat([[tf.cast(count, tf.int64)], value.dense_shape[1:]], 0)
            return tf.sparse.slice(value, tf.cast(begin, tf.int64), shape)
        rows = value[start : start + count]
        if static is not None and isinstance(rows, tf.Tensor):
            rows.set_shape([static, *rows.shape[1:]])
        return rows

    return keras.tree.map_structure(one, data)


def with_none(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """`dataset` with None for each Optional: Keras's adapters give one for a part that is None."""
    spec = dataset.element_spec
    if not any(isinstance(one, tf.OptionalSpec) for one in keras.tree.flatten(spec)):
        return dataset

    def one(value: Any) -> Any:
        return None if isinstance(value, tf.experimental.Optional) else value

    return dataset.map(
        no_autograph(lambda *batch: keras.tree.map_structure(one, element_of(batch, spec)))
    )


def with_free_batch_axis(spec: Any) -> Any:
    """`spec` with the first dimension of every tensor unknown, and None for a part that is None."""
    none = type(tf.type_spec_from_value(None))
    free = with_rows(spec, None)
    return keras.tree.map_structure(lambda one: None if isinstance(one, none) else one, free)


def with_rows(spec: Any, rows: int | None) -> Any:
    """`spec` with `rows` as the first dimension of every tensor."""

    def one(each: Any) -> Any:
        if not isinstance(each, tf.TensorSpec):
            return each
        return tf.TensorSpec([rows, *each.shape[1:]], each.dtype)

    return keras.tree.map_structure(one, spec)


def size_of_all(batch_size: int | None, num_samples: int | None) -> int | None:
    """Rows of every global batch; None where that is unknown or the last has fewer.

    Args:
        batch_size: samples in every batch but the last of a pass, None where unknown.
        num_samples: samples in one pass, None where they are not counted.
    """
    return None if batch_size is None or (num_samples or 0) % batch_size else batch_size
