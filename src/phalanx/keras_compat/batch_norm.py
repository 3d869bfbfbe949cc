"""BatchNormalization with the mean and variance of the global batch.

A layer that normalizes with the rows of its replica alone gives another answer than one device
would have given. So in a step whose replicas add up, each BatchNormalization does what
`synchronized=True` asks for. Keras's own `_compute_moments_sync` has E[x^2] - E[x]^2, which cancels
in float32, counts stand-in rows, and is not asked where the layer has a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from phalanx.gradients.graph_walk import is_in_branch
from phalanx.gradients.replica_batch import ReplicaBatch
from phalanx.gradients.replica_exchange import gather_equal, sum_upstream


def moments_of_layer(
    original: Callable[..., Any], replica_batch_of_many: Callable[[], ReplicaBatch | None]
) -> Callable[..., Any]:
    """A `BatchNormalization._moments` over the rows of all replicas.

    Args:
        original: Keras's.
        replica_batch_of_many: gives the batch of a replica whose step others add to.
    """

    def moments(self: Any, inputs: Any, mask: Any) -> Any:
        replica_batch = replica_batch_of_many()
        if replica_batch is None:
            return original(self, inputs, mask)
        if not _is_global(self, replica_batch):
            replica_batch.on_its_own.update(map(id, self.non_trainable_variables))
            own: tuple[Any, Any] = original(self, inputs, mask)
            replica_batch.record_own(own)
            return own
        replica_batch.note_invariant(self.non_trainable_variables)
        # All axes but the layer's own, as `_reduction_axes`.
        rank = len(inputs.shape)
        axes = [axis for axis in range(rank) if axis != self.axis % rank]
        if mask is not None:
            mask = tf.cast(tf.broadcast_to(tf.expand_dims(mask, -1), tf.shape(inputs)), tf.bool)
        return global_moments(replica_batch, inputs, axes, mask=mask)

    return moments


def global_moments(
    replica_batch: ReplicaBatch,
    x: Any,
    axes: Sequence[int],
    *,
    keepdims: bool = False,
    mask: Any = None,
) -> tuple[Any, Any]:
    """Mean and variance over `axes` and over replicas.

    Each replica has those of its own rows, which are put together as in Chan, Golub and LeVeque,
    "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979). That takes
    one exchange, and one in the backward pass.

    Args:
        replica_batch: the replica's.
        x: its values.
        axes: the dimensions to aggregate.
        keepdims: whether they stay, of length 1.
        mask: which entries count, bool, of the shape of `x`; None for all.
    """

    def summed(values: Any) -> Any:
        counted = values if mask is None else tf.where(mask, values, tf.zeros_like(values))
        return tf.reduce_sum(counted, axis=axes, keepdims=True)

    total = summed(x)
    if mask is None:
        entries = tf.cast(tf.size(x), x.dtype) / tf.cast(tf.size(total), x.dtype)
        count = tf.fill(tf.shape(total), entries)
    else:
        count = summed(tf.ones_like(x))
    mean = tf.math.divide_no_nan(total, count)
    # The sum does not change with the mean, so no gradient passes there, as in tf.nn.moments.
    squares = summed(tf.math.squared_difference(x, tf.stop_gradient(mean)))
    count *= tf.cast(replica_batch.count > 0, x.dtype)  # a stand-in row is no sample
    # Keras adds this where the layer has a mask, for a batch that is masked in full.
    more = 0.0 if mask is None else keras.config.epsilon()
    mean, variance = _put_together(count, mean, squares, more)
    for moment in (mean, variance):
        replica_batch.record_total(moment)
    if keepdims:
        return mean, variance
    return tf.squeeze(mean, axes), tf.squeeze(variance, axes)


def _put_together(count: Any, mean: Any, squares: Any, more: float) -> tuple[Any, Any]:
    """Mean and variance of all replicas.

    Args:
        count: how many entries each channel has here.
        mean: their mean.
        squares: the sum of their squared differences from it.
        more: what to add to the count of all.
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def exchanged(mean: Any, squares: Any) -> Any:
        own = tf.where(count > 0, tf.stack([count, mean, squares]), 0.0)
        counts, means, sums = tf.unstack(gather_equal(own, what="moments"), axis=1)
        whole = tf.reduce_sum(counts, axis=0) + more
        average = tf.reduce_sum(counts * means, axis=0) / whole
        apart = counts * tf.math.squared_difference(means, average)

        def backward(of_mean: Any, of_variance: Any) -> Any:
            of_mean, of_variance = sum_upstream([of_mean, of_variance])
            difference = tf.stop_gradient(own[1] - average)
            part = tf.math.divide_no_nan(count, whole)
            shared = tf.where(count > 0, of_variance / whole, 0.0)
            return part * (of_mean + 2 * difference * of_variance), shared

        return (average, tf.reduce_sum(sums + apart, axis=0) / whole), backward

    moments: tuple[Any, Any] = exchanged(mean, squares)
    return moments


def _is_global(layer: Any, replica_batch: ReplicaBatch) -> bool:
    """Whether all replicas normalize together.

    Not in a branch or a loop, unless the layer asks for it: where replicas differ in what they run,
    they would wait for each other for ever.
    """
    return bool(layer.synchronized) or (replica_batch.syncs_batchnorm and not is_in_branch())
