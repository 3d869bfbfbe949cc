"""Count what the replicas got where the user, not Phalanx, cut the global batch."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from phalanx.gradients.reduce import reduce_sum


def count_share(data: Any) -> tuple[tf.Tensor, tf.Tensor, Any]:
    """(total, count, data) for a replica's part of a distributed dataset's element.

    An empty part gets one row of zeros that stands in, as elsewhere it gets a real row.
    """
    first = next(v for v in keras.tree.flatten(data) if v is not None)
    count = tf.shape(first)[0]
    total = reduce_sum([count])[0]
    return total, count, keras.tree.map_structure(_fill, data)


def _fill(value: Any) -> Any:
    if not isinstance(value, tf.Tensor):
        return value
    missing = tf.cast(tf.shape(value)[0] == 0, tf.int32)
    return tf.pad(value, [[0, missing]] + [[0, 0]] * (value.shape.rank - 1))
