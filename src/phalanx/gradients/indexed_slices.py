"""Sparse gradients as rows: duplicates summed, nothing made dense."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def sum_duplicates(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same gradient with each row once; norms of its values are norms of the gradient."""
    rows, position = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, position, tf.size(rows))
    return tf.IndexedSlices(values, rows, slices.dense_shape)


def values_of(gradient: Any) -> tf.Tensor:
    """The entries of a gradient that are stored, duplicates summed, in float32."""
    if isinstance(gradient, tf.IndexedSlices):
        return rows_of(gradient).values
    return tf.cast(gradient, tf.float32)


def rows_of(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Each row once, in float32; cast first, for a half overflows in the sum."""
    values = tf.cast(slices.values, tf.float32)
    return sum_duplicates(tf.IndexedSlices(values, slices.indices, slices.dense_shape))


def with_values(gradient: Any, change: Any) -> Any:
    """`gradient` with `change` applied to its float32 values, in its own dtype."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        unique = rows_of(gradient)
        changed = tf.cast(change(unique.values), gradient.values.dtype)
        return tf.IndexedSlices(changed, unique.indices, gradient.dense_shape)
    return tf.cast(change(tf.cast(gradient, tf.float32)), gradient.dtype)
