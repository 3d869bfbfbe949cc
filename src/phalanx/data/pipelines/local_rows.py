"""What one process reads of a global batch, and what it hands on of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from phalanx.data.batches import slice_rows
from phalanx.distributed.topology import ReplicaTopology, rows_of


@dataclass(frozen=True, kw_only=True)
class LocalBatch:
    """The rows of one global batch that this process's replicas take; traced.

    Attributes:
        position: of the batch, scalar int64, from 0 over all epochs.
        total: samples of the global batch.
        first: the first that is read here.
        count: how many of those read belong here.
        data: those read: at least one, which is a stand-in where none belongs here.
    """

    position: tf.Tensor
    total: tf.Tensor
    first: tf.Tensor
    count: tf.Tensor
    data: Any


Make = Callable[[LocalBatch], Any]
"""What a pipeline gives of one batch; traced."""


def shares(rows: LocalBatch, topology: ReplicaTopology) -> tuple[tf.Tensor, Any]:
    """`(total, parts)`, as `fit` takes them."""
    parts = []
    for replica in range(topology.first, topology.first + topology.local):
        start, count = rows_of(replica, topology.total, rows.total)
        part = rows.data
        if topology.local > 1:
            begin = tf.where(count > 0, start - rows.first, 0)
            most = tf.maximum(tf.cast(count, tf.int32), 1)
            part = slice_rows(rows.data, tf.cast(begin, tf.int32), most)
        parts.append((tf.cast(count, tf.int32), part))
    return tf.cast(rows.total, tf.int32), tuple(parts)


def replica_part(rows: LocalBatch) -> Any:
    """All rows of this process, for a custom training loop; none where none belongs here."""
    return slice_rows(rows.data, tf.constant(0), tf.cast(rows.count, tf.int32))
