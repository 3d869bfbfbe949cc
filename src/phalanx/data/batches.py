"""Global batches as `tf.data`, each cut into the shares of this process's replicas.

Every element is `(total, parts)`: `total` counts the samples of the global batch (scalar
int32), and `parts` holds one `(count, data)` per local replica. A replica without samples
gets count 0 and one stand-in row, since layers need not accept empty batches.

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
from phalanx.distributed.topology import ReplicaTopology, rows_of
from phalanx.errors import DataError

no_autograph = tf.autograph.experimental.do_not_convert
"""Python that TensorFlow traces without AutoGraph."""


class BatchSource(Protocol):
    """Where global batches come from.

    Attributes:
        num_batches: global batches in one pass, None when unknown or endless.
        batch_spec: shapes and dtypes of a global batch as fit's data, batch axis None.
        may_be_empty: whether some replica can end up without samples in some batch.
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
) -> tuple[tf.Tensor, Any]:
    """The rows of a replica, of every tensor in `data` by its own number of rows.

    Args:
        data: a global batch; scalars in it are everybody's.
        replica: the replica's number.
        replicas: how many there are.
        may_be_empty: whether a replica can be without rows, and gets a stand-in row.
        static: rows of the replica, where they are known.

    Returns:
        How many rows of the first tensor are the replica's, and its part.
    """

    def one(value: Any) -> Any:
        if value is None or value.shape.rank == 0:
            return value
        start, count = rows_of(replica, replicas, rows_in(value))
        if may_be_empty:
            start, count = tf.where(count > 0, start, 0), tf.maximum(count, 1)
        return slice_rows(value, start, count, static)

    _, count = rows_of(replica, replicas, total_rows(data))
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


def assert_same_split(data: Any, replicas: int) -> Any:
    """`data`, where each replica takes the same share of every tensor; fails elsewhere.

    A replica's gradient is weighed by its share of the rows, which must be one number: of 60 rows
    next to 10 two replicas take a half each; of 37 next to 7 they could not.

    Raises:
        DataError: the numbers of rows are known and differ; nothing can be sharded.
    """
    tensors = tensors_of(data)
    advice = (
        f"Each is shared out by its own rows (axis 0), and {replicas} replicas cannot take the "
        f"same share of all. Make each number of rows a multiple of {replicas}, and leave the "
        "last, smaller batch out (drop_remainder=True). If a map joins the samples of a batch, as "
        "graphs, batch ragged tensors and join them in the model."
    )
    known = [v.shape[0] for v in tensors if isinstance(v, tf.Tensor)]
    if len(known) == len(tensors) and None not in known:
        if not all(_is_split_equally(rows, known[0], replicas) for rows in known):
            raise DataError(
                f"The tensors of a batch have unlike numbers of rows: {known}. {advice}"
            )
        return data
    rows = [rows_in(v) for v in tensors]
    same_rows = [
        tf.equal(
            rows_of(replica, replicas, one)[1] * rows[0],
            rows_of(replica, replicas, rows[0])[1] * one,
        )
        for one in rows[1:]
        for replica in range(replicas)
    ]
    if not same_rows:
        return data
    message = f"The tensors of a batch have unlike numbers of rows: those below. {advice}"
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(same_rows), [message, *rows])]):
        return keras.tree.map_structure(lambda v: None if v is None else tf.identity(v), data)


def _is_split_equally(rows: int, first: int, replicas: int) -> bool:
    return all(
        rows_of(replica, replicas, rows)[1] * first == rows_of(replica, replicas, first)[1] * rows
        for replica in range(replicas)
    )


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


def shard_batch(topology: ReplicaTopology, data: Any) -> Any:
    """`(total, parts)` of the one batch `data`; see `BatchSource`.

    Args:
        topology: this process's replicas.
        data: `(x,)`, `(x, y)` or `(x, y, sample_weight)` of tensors with rows along axis 0.

    Raises:
        DataError: the tensors' rows differ, so that they cannot be sharded together.
    """
    if topology.total > 1:
        data = assert_same_split(data, topology.total)
    replicas = range(topology.first, topology.first + topology.local)
    return total_rows(data), tuple(cut(data, replica, topology.total) for replica in replicas)
