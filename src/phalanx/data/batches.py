"""Global batches as `tf.data`, each cut into the shares of this process's replicas.

Every element is `(total, parts)`: `total` counts the samples of the global batch (scalar
int32), and `parts` holds one `(count, data)` per local replica. A replica without samples
gets count 0 and one row that stands in, since layers need not accept empty batches.

Every worker walks the same global order, so all agree on where it ends without asking.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import keras
import tensorflow as tf

from phalanx.data.position import Position

as_written = tf.autograph.experimental.do_not_convert
"""Python that TensorFlow traces as it stands."""


class BatchSource(Protocol):
    """Where global batches come from.

    Attributes:
        num_batches: global batches in one pass, None when unknown or endless.
        batch_spec: shapes and dtypes of a global batch as fit's data, batch axis None.
        may_be_empty: whether some replica can end up without samples in some batch.
        endless: whether an open iterator goes on into the next pass by itself.
        counted: whether elements are `(total, parts)`, as described above.
        num_samples: samples in one pass, None where nobody has counted.
        batch_size: samples in every batch but the last of a pass, None where unknown.
        ends_unknown: whether nobody can know where a pass ends until it does, and workers
            that share it have to ask each other.
        has_state: whether what an open iterator holds can be saved and brought back.
        fingerprint: equal where the data is, None where that cannot be told.
        seed: decides the order, None where the order is the data's own.
    """

    num_batches: int | None
    batch_spec: Any
    may_be_empty: bool
    endless: bool
    counted: bool
    ends_unknown: bool
    has_state: bool
    num_samples: int | None
    batch_size: int | None
    fingerprint: int | None
    seed: int | None

    def open(self, position: int) -> Any:
        """An iterator over elements that starts `position` global batches into training."""

    def open_again(self, position: Position, state: Mapping[str, Any] | None) -> Any:
        """The iterator that stood at `position`, None where a new pass begins there.

        Args:
            position: where, in an earlier process.
            state: what `phalanx.data.iterator_state` read of that iterator, if anything.
        """

    def on_epoch_begin(self) -> None:
        """Called before an epoch takes its first batch."""

    def on_epoch_end(self) -> None:
        """Called after an epoch took its last batch."""


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
