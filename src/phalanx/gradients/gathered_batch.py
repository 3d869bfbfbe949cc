"""The rows of all replicas in one tensor, for losses that look across the batch."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from phalanx.gradients.replica_batch import ReplicaBatch
from phalanx.gradients.replica_exchange import sum_upstream
from phalanx.gradients.step_context import current_replica_batch


def all_gather_batch(tensor: Any) -> tf.Tensor:
    """The rows of `tensor` of all workers, in the order of the global batch; differentiable.

        similarity = tf.matmul(phalanx.all_gather_batch(images), texts, transpose_b=True)

    A loss that compares each row of a batch with the others, as contrastive losses do, sees on
    each worker only that worker's rows. Over gathered rows it is the loss, with the gradient, of
    one device, be it computed for all rows or for this worker's rows against all: its mean, its
    sum over the rows, or, without a reduction, one loss for each. In an eager step take the mean.

    Args:
        tensor: this worker's rows along axis 0, of any number: of batches that were concatenated
            before, all.

    Returns:
        All rows. On one worker, and in a loop where each worker holds global batches, `tensor`.
    """
    tensor = tf.convert_to_tensor(tensor)
    strategy = tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync == 1 or tf.distribute.in_cross_replica_context():
        return tensor
    replica_batch = current_replica_batch()
    if replica_batch is not None:  # without samples there is a stand-in row, which is no sample
        tensor = tensor[: tf.where(replica_batch.count > 0, tf.shape(tensor)[0], 0)]
    gathered: tf.Tensor = _gather(tensor)
    if replica_batch is not None:
        replica_batch.record_gathered(gathered)
    return gathered


def gather_rows(tensor: Any) -> tf.Tensor:
    """`all_gather_batch` of a tensor of any dtype, bool included."""
    if tensor.dtype == tf.bool:
        return tf.cast(all_gather_batch(tf.cast(tensor, tf.int32)), tf.bool)
    return all_gather_batch(tensor)


def own_rows(whole: Any, own: Any, replica_batch: ReplicaBatch) -> Any:
    """Of one value for each row of the global batch, those of the rows that `own` has."""
    number, total = tf.shape(own)[0], tf.shape(whole)[0]
    begin = replica_batch.start * (total // replica_batch.total)
    begin = tf.minimum(begin, total - number)  # a stand-in row, where it has none
    return whole[begin : begin + number]


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _gather(rows: tf.Tensor) -> Any:
    context = tf.distribute.get_replica_context()
    count = tf.shape(rows)[0]
    counts = context.all_gather(count[None], axis=0)
    whole = context.all_gather(rows, axis=0)
    whole.set_shape([None, *rows.shape[1:]])

    def backward(upstream: Any) -> tf.Tensor:
        (total,) = sum_upstream([tf.convert_to_tensor(upstream)])
        start = tf.reduce_sum(counts[: context.replica_id_in_sync_group])
        return total[start : start + count]

    return whole, backward
