"""L2 norms that stay finite where a float32 square does not, and the factors that clip."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def norm(values: tf.Tensor, axes: Sequence[int] | None = None) -> tf.Tensor:
    """The L2 norm of float32 `values`, finite wherever the norm itself has a float32.

    Entries are divided by the largest before they are squared, for the square of 1e20 is
    infinite. A NaN stays one.

    Args:
        values: float32, of any shape.
        axes: the axes to reduce, which stay with size 1; None reduces all to a scalar.
    """
    keep = axes is not None
    largest = tf.reduce_max(tf.abs(values), axis=axes, keepdims=True)
    usable = tf.math.is_finite(largest) & (largest > 0)
    unit = tf.where(usable, largest, 1.0)
    total = tf.reduce_sum(tf.square(values / unit), axis=axes, keepdims=True)
    length = unit * tf.sqrt(total)
    return length if keep else tf.reshape(length, [])


def norms(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """The L2 norm of each float32 tensor, float32 of shape [len(tensors)].

    Costs one pass over the entries; only where a square overflows are there more.
    """
    if not tensors:
        return tf.zeros([0])
    plain = tf.stack([tf.sqrt(tf.reduce_sum(tf.square(t))) for t in tensors])
    return tf.cond(
        tf.reduce_all(tf.math.is_finite(plain)),
        lambda: plain,
        lambda: tf.stack([norm(t) for t in tensors]),
    )


def clip_factor(length: tf.Tensor, limit: float | tf.Tensor) -> tf.Tensor:
    """The factor that takes a norm of `length` to at most `limit`, which is above 0.

    Exactly 1 where nothing is to do; NaN, as Keras's `global_clipnorm` makes it, where
    `length` is not finite: 0 would turn the gradient into a step that silently does nothing.
    """
    return limit / tf.maximum(length, limit) + (length - length)
