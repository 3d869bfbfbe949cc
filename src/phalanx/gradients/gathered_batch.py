"""The rows of all replicas in one tensor, for losses that look across the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from phalanx.gradients.replica_batch import ReplicaBatch
from phalanx.gradients.replica_exchange import gather_equal, sum_upstream
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
    (gathered,) = gather_rows([tf.convert_to_tensor(tensor)])
    return gathered


def gather_rows(tensors: Sequence[Any]) -> list[tf.Tensor]:
    """`all_gather_batch` of tensors, which travel together; strings travel as numbers.

    It takes two exchanges, one more for each further dtype, and one more for strings.
    """
    strategy = tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync == 1 or tf.distribute.in_cross_replica_context():
        return list(tensors)
    replica_batch = current_replica_batch()
    if replica_batch is not None:  # without samples there is a stand-in row, which is no sample
        is_held = replica_batch.count > 0
        tensors = [one[: tf.where(is_held, tf.shape(one)[0], 0)] for one in tensors]
    sent = [_numbers_of_strings(one) if one.dtype == tf.string else one for one in tensors]
    gathered = [
        _strings_of_numbers(whole) if one.dtype == tf.string else whole
        for one, whole in zip(tensors, _gather(*sent), strict=True)
    ]
    if replica_batch is not None:
        for one in gathered:
            replica_batch.record_gathered(one)
    return gathered


def _numbers_of_strings(strings: tf.Tensor) -> tf.Tensor:
    """Of each string the number of its bytes, and after that its bytes, eight in a number."""
    lengths = tf.strings.length(strings)
    longest = tf.reduce_max(tf.concat([[0], tf.reshape(lengths, [-1])], 0))
    longest = tf.reduce_max(gather_equal(longest, what="the longest string"))
    padded = tf.maximum(longest + 7, 8) // 8 * 8
    contents = tf.io.decode_raw(strings, tf.int64, fixed_length=padded)
    return tf.concat([tf.cast(lengths, tf.int64)[..., None], contents], -1)


def _strings_of_numbers(numbers: tf.Tensor) -> tf.Tensor:
    lengths, contents = numbers[..., 0], tf.bitcast(numbers[..., 1:], tf.uint8)
    contents = tf.reshape(contents, tf.concat([tf.shape(lengths), [-1]], 0))
    letters = tf.gather([bytes([one]) for one in range(256)], tf.cast(contents, tf.int32))
    joined = tf.strings.reduce_join(letters, axis=-1)
    return tf.strings.substr(joined, tf.zeros_like(lengths), lengths)


def own_rows(whole: Any, replica_batch: ReplicaBatch) -> Any:
    """Of values for the rows of the global batch, those of this replica's rows.

    Replicas together have each value once, also where they are not equally many for each row.
    What this replica computes in place of `whole` is not asked for its shape: it may be a product
    that its rows alone do not have, such as one with the adjacency matrix of a graph.
    """
    total = tf.shape(whole, tf.int64)[0]
    start, rows, of_batch = (
        tf.cast(n, tf.int64)
        for n in (replica_batch.start, replica_batch.own_rows, replica_batch.total)
    )
    begin = start * total // of_batch  # a step may put rows of several kinds together
    number = (start + rows) * total // of_batch - begin
    begin = tf.minimum(begin, total - number)  # of a row that stands in
    return whole[begin : begin + number]


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _gather(*tensors: tf.Tensor) -> Any:
    """The rows of all replicas of each tensor; they are padded to one number for the exchange."""
    own = tf.stack([tf.shape(rows, tf.int64)[0] for rows in tensors])
    counts = gather_equal(own, what="numbers of rows")
    most = tf.reduce_max(counts, axis=0)
    carriers = [one.dtype if one.dtype.is_floating else tf.int64 for one in tensors]
    wholes: list[Any] = [None] * len(tensors)
    for carrier in dict.fromkeys(carriers):
        places = [i for i, one in enumerate(carriers) if one == carrier]
        sent = [tf.reshape(_padded(tf.cast(tensors[i], carrier), most[i]), [-1]) for i in places]
        everyones = gather_equal(tf.concat(sent, 0), what="rows")
        parts = tf.split(everyones, tf.stack([tf.size(one) for one in sent]), 1, num=len(sent))
        for i, part in zip(places, parts, strict=True):
            inner = tensors[i].shape[1:]
            rows = tf.reshape(part, tf.concat([[-1], tf.shape(tensors[i])[1:]], 0))
            is_row = tf.reshape(tf.sequence_mask(counts[:, i], most[i]), [-1])
            wholes[i] = tf.cast(tf.boolean_mask(rows, is_row), tensors[i].dtype)
            wholes[i].set_shape([None, *inner])

    def backward(*upstream: Any) -> list[Any]:
        floats = [i for i, one in enumerate(tensors) if one.dtype.is_floating]
        totals = sum_upstream([tf.convert_to_tensor(upstream[i]) for i in floats])
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        begins = tf.reduce_sum(counts[:replica], axis=0)
        gradients: list[Any] = [None] * len(tensors)
        for i, total in zip(floats, totals, strict=True):
            gradients[i] = total[begins[i] : begins[i] + own[i]]
        return gradients

    return wholes, backward


def _padded(rows: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """`rows` and zeros, `number` in all."""
    missing = number - tf.shape(rows, tf.int64)[0]
    return tf.pad(rows, [[0, missing], *[[0, 0]] * (rows.shape.rank - 1)])
