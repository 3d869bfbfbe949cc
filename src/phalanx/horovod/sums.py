"""Horovod's collectives on TensorFlow values of any dtype."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# What Horovod 0.28 cannot add up travels as a wider type.
_WIDER = {
    tf.bfloat16: tf.float32,
    tf.bool: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
    tf.uint64: tf.int64,
}


def add_up(horovod: Any, value: Any, *, mean: bool = False) -> Any:
    """The sum, or the mean, of every process's `value`: a tensor or `tf.IndexedSlices`.

    The rows of IndexedSlices come in the order of the ranks.
    """
    if isinstance(value, tf.IndexedSlices):
        return horovod.allreduce(value, op=horovod.Average if mean else horovod.Sum)
    tensor = tf.convert_to_tensor(value)
    carrier = _WIDER.get(tensor.dtype, tensor.dtype)
    total = horovod.allreduce(tf.cast(tensor, carrier), op=horovod.Sum)
    if mean:
        total = total / tf.cast(horovod.size(), carrier)
    return tf.cast(total, tensor.dtype)


def gather(horovod: Any, value: Any, axis: int) -> Any:
    """Every process's `value`, one after the other along `axis`, by rank."""
    tensor = tf.convert_to_tensor(value)
    carrier = _WIDER.get(tensor.dtype, tensor.dtype)
    if axis == 0:
        return tf.cast(horovod.allgather(tf.cast(tensor, carrier)), tensor.dtype)
    order = [axis, *(i for i in range(tensor.shape.rank) if i != axis)]
    back = [order.index(i) for i in range(len(order))]
    return tf.transpose(gather(horovod, tf.transpose(tensor, order), 0), back)
