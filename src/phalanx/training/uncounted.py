"""Count what the replicas got where the user, not Phalanx, cut the global batch."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from phalanx.gradients.reduce import reduce_sum


def count_share(data: Any, replica: int, replicas: int) -> tuple[Any, Any, Any, Any]:
    """(total, start, count, data) for a replica's part of a distributed dataset's element.

    An empty part gets one row of zeros that stands in, as elsewhere it gets a real row.
    """
    first = next(v for v in keras.tree.flatten(data) if v is not None)
    count = tf.shape(first)[0]
    (counts,) = reduce_sum([tf.one_hot(replica, replicas, count, 0, dtype=tf.int32)])
    start = tf.reduce_sum(counts[:replica])
    return tf.reduce_sum(counts), start, count, keras.tree.map_structure(_fill, data)


def _fill(value: Any) -> Any:
    if not isinstance(value, tf.Tensor):
        return value
    missing = tf.cast(tf.shape(value)[0] == 0, tf.int32)
    return tf.pad(value, [[0, missing]] + [[0, 0]] * (value.shape.rank - 1))
