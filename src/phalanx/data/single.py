"""One global batch, given whole: the element of it that a step takes."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from phalanx.data.place import ReplicaPlace, rows_of


def one_batch(place: ReplicaPlace, data: Any) -> Any:
    """`(total, parts)` of the one batch `data`; see `phalanx.data.batches`.

    Args:
        place: this process's replicas.
        data: `(x,)`, `(x, y)` or `(x, y, sample_weight)` of tensors with equal first axes.
    """
    total = int(next(v for v in keras.tree.flatten(data) if v is not None).shape[0])
    parts = []
    for replica in range(place.first, place.first + place.local):
        start, count = rows_of(replica, place.total, total)
        first = start if count else 0  # a row that stands in
        rows = slice(first, first + max(count, 1))
        part = keras.tree.map_structure(lambda v, rows=rows: None if v is None else v[rows], data)
        parts.append((tf.constant(count), part))
    return tf.constant(total), tuple(parts)
