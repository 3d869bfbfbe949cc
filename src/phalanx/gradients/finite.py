"""Whether gradients are finite, asked in one pass over what each replica brings.

A sum of squares that float32 can hold has no entry above 3e19, so no sum over replicas of such
gradients overflows: where all replicas bring FINE ones, nobody need read the total.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from phalanx.gradients.branches import rarely
from phalanx.gradients.reduce import Gradient

FINE, LARGE, NONFINITE = 0.0, 0.5, 1.0
"""What a replica says of its gradients; LARGE ones are finite, their sum need not be."""


def said_of(gradients: Sequence[Gradient]) -> tf.Tensor:
    """FINE, LARGE or NONFINITE, for all entries of all `gradients`; scalar float32."""
    present = [_values(g) for g in gradients if g is not None]
    if not present:
        return tf.constant(FINE)
    squares = tf.add_n([tf.cast(tf.nn.l2_loss(_wide(g)), tf.float32) for g in present])
    return tf.cond(
        tf.math.is_finite(squares),
        lambda: tf.constant(FINE),
        rarely(lambda: tf.where(_each_is_finite(present), LARGE, NONFINITE)),
    )


def is_finite(total: Sequence[Gradient], said: tf.Tensor) -> tf.Tensor:
    """Whether every entry of what replicas have added up is finite, scalar bool.

    Args:
        total: the sums.
        said: what each replica said of its own, float32 of shape [replicas].
    """
    present = [_values(g) for g in total if g is not None]
    if said.shape[0] == 1 or not present:
        return tf.reduce_all(said < NONFINITE)
    if any(g.dtype == tf.float16 for g in present):  # 65504 overflows though its square is fine
        return _each_is_finite(present)
    return tf.cond(
        tf.reduce_all(said < LARGE),
        lambda: tf.constant(True),
        rarely(lambda: _each_is_finite(present)),
    )


def nonfinite_flags(gradients: Sequence[Gradient]) -> tf.Tensor:
    """For each gradient whether it has a NaN or infinite entry, as int32."""
    flags = [
        tf.constant(False) if g is None else ~tf.reduce_all(tf.math.is_finite(_values(g)))
        for g in gradients
    ]
    return tf.cast(tf.stack(flags), tf.int32)


def without_nonfinite(gradients: Sequence[Gradient]) -> list[Gradient]:
    """The gradients with 0 for every NaN or infinite entry."""
    return [_zeroed(g) for g in gradients]


def _each_is_finite(values: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in values])


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
