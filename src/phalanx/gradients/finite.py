"""Whether gradients are finite, asked in one pass over them."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from phalanx.gradients.branches import rarely
from phalanx.gradients.reduce import Gradient


def are_finite(gradients: Sequence[Gradient]) -> tf.Tensor:
    """Whether every entry of all `gradients` is finite, scalar bool.

    A sum of squares that float32 can hold says so in one pass and without memory of its own. Where
    entries are beyond 1e19 it cannot, and each is looked at.
    """
    present = [_values(g) for g in gradients if g is not None]
    if not present:
        return tf.constant(True)
    squares = tf.add_n([tf.cast(tf.nn.l2_loss(_wide(g)), tf.float32) for g in present])
    return tf.cond(
        tf.math.is_finite(squares),
        lambda: tf.constant(True),
        rarely(lambda: each_is_finite(present)),
    )


def each_is_finite(gradients: Sequence[Gradient]) -> tf.Tensor:
    """The same, entry by entry: for branches that are hardly ever taken."""
    return tf.reduce_all([_one_is_finite(g) for g in gradients])


def can_overflow(gradients: Sequence[Gradient], replicas: int) -> tf.Tensor:
    """Whether a sum over `replicas` could overflow by these gradients, scalar bool.

    So it does where they are not finite, and where an entry has more than half of its share of the
    largest number; half, since sums are rounded. Where no replica has such an entry, no sum
    overflows.
    """
    present = [_values(g) for g in gradients if g is not None]
    fine = [tf.reduce_all(tf.abs(g) <= float(g.dtype.max) / (2 * replicas)) for g in present]
    return ~tf.reduce_all(fine)


def nonfinite_flags(gradients: Sequence[Gradient]) -> tf.Tensor:
    """For each gradient whether it has a NaN or infinite entry, as int32."""
    return tf.cast(~tf.stack([_one_is_finite(g) for g in gradients]), tf.int32)


def without_nonfinite(gradients: Sequence[Gradient]) -> list[Gradient]:
    """The gradients with 0 for every NaN or infinite entry."""
    return [_zeroed(g) for g in gradients]


def _one_is_finite(gradient: Gradient) -> tf.Tensor:
    if gradient is None:
        return tf.constant(True)
    return tf.reduce_all(tf.math.is_finite(_values(gradient)))


def _wide(values: tf.Tensor) -> tf.Tensor:
    """Values whose squares need more than 16 bits, in 32."""
    return tf.cast(values, tf.float32) if values.dtype.size < 4 else values


def _values(gradient: Gradient) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _zeroed(gradient: Gradient) -> Gradient:
    if gradient is None:
        return None
    values = _values(gradient)
    clean = tf.where(tf.math.is_finite(values), values, tf.zeros_like(values))
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(clean, gradient.indices, gradient.dense_shape)
    return clean
