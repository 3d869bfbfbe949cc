"""How sparse gradients travel: as rows, as rows that are added up, or dense.

One device hands Keras's optimizers an embedding's gradient as rows, a row for each use of an entry.
Most of them (Adam, Adagrad, RMSprop, ...) square those rows one by one, so all of them must arrive.
Where the optimizer only adds rows up, as SGD does, equal ones are added up before they travel.
"""

from __future__ import annotations

from typing import Any, Literal

import tensorflow as tf

from phalanx.cluster.reduce_options import ReduceDtype
from phalanx.distributed.collectives import Collectives
from phalanx.gradients.indexed_slices import sum_duplicates
from phalanx.gradients.reduced_dtype import gather_reduced, is_reduced, sum_reduced

Travel = Literal["rows", "summed_rows", "dense"]

SMALL_TABLE_MB = 1.0
"""A table of up to this size travels dense: it is packed with the other gradients, while rows take
three exchanges of their own."""

_INDEX_BYTES = 8


def choose_travel(gradient: tf.IndexedSlices, variable: Any, *, adds_rows: bool) -> Travel:
    """How a sparse gradient travels; depends only on what is the same on all workers.

    Args:
        gradient: this worker's.
        variable: what it is the gradient of.
        adds_rows: whether the optimizer adds up equal rows before it does anything else.
    """
    if not adds_rows:
        return "rows"
    entries = variable.shape.num_elements()
    if entries is not None and entries * gradient.dtype.size <= SMALL_TABLE_MB * 1e6:
        return "dense"
    return "summed_rows"


def as_it_travels(gradient: tf.IndexedSlices, variable: Any, travel: Travel) -> Any:
    """What a worker passes on."""
    if travel == "dense":
        return _dense(gradient, variable.shape[0])
    return sum_duplicates(gradient) if travel == "summed_rows" else gradient


def sum_rows(
    slices: tf.IndexedSlices, collectives: Collectives, reduce_dtype: ReduceDtype | None
) -> tf.IndexedSlices:
    """The sum over workers of slices whose rows differ within each worker.

    Workers exchange how many rows each holds. Where sending them takes more bytes than an
    all-reduce of the table, they travel dense; the result then has every row of the table.
    """
    held = tf.reduce_sum(collectives.gather_equal(tf.shape(slices.indices)[:1]))
    table = tf.cast(slices.dense_shape[0], tf.int32)
    row = float(slices.values.shape[1:].num_elements() or 1)
    row *= 2 if is_reduced(slices.dtype, reduce_dtype) else slices.dtype.size
    # A ring all-reduce sends nearly twice the table; a gather all rows, with their indices.
    is_less = tf.cast(held, tf.float32) * (row + _INDEX_BYTES) > 2 * row * tf.cast(
        table, tf.float32
    )

    def dense() -> tuple[tf.Tensor, tf.Tensor]:
        whole = _dense(slices, table)
        if reduce_dtype is not None and is_reduced(slices.dtype, reduce_dtype):
            flat = tf.reshape(whole, [-1])
            total = tf.reshape(sum_reduced(flat, collectives, reduce_dtype), tf.shape(whole))
        else:
            total = collectives.all_reduce(whole)
        return total, tf.range(tf.cast(table, slices.indices.dtype))

    def rows() -> tuple[tf.Tensor, tf.Tensor]:
        total = _gathered(slices, collectives, reduce_dtype)
        return total.values, total.indices

    values, indices = tf.cond(is_less, dense, rows)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _gathered(
    slices: tf.IndexedSlices, collectives: Collectives, reduce_dtype: ReduceDtype | None
) -> tf.IndexedSlices:
    if reduce_dtype is not None and is_reduced(slices.dtype, reduce_dtype):
        return gather_reduced(slices, collectives, reduce_dtype)
    return collectives.all_reduce(slices)


def _dense(slices: tf.IndexedSlices, rows: Any) -> tf.Tensor:
    return tf.math.unsorted_segment_sum(slices.values, slices.indices, rows)
