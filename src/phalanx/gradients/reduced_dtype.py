"""Add up flat tensors that travel in 16 bits.

Between two workers each sends its values and both add them up in float32, which takes the bytes of
an all-reduce and rounds each value once. Among more, that would take more bytes: the collective
adds up, in the dtype in which the values travel.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from phalanx.cluster.reduce_options import ReduceDtype
from phalanx.distributed.collectives import Collectives

_HEADROOM = 14
"""float16 ends at 2 ** 16; the largest value is scaled to 2 ** 14 to 2 ** 15."""

_LEAST, _MOST = -100, 113
"""Bounds of exponents, for which float32 has the factor and 1 by it."""


def is_reduced(dtype: tf.DType, reduce_dtype: ReduceDtype | None) -> bool:
    """Whether values of `dtype` travel in `reduce_dtype`, which must be narrower."""
    return reduce_dtype is not None and bool(dtype.is_floating) and dtype.size > 2


def size_in_transit(dtype: tf.DType, reduce_dtype: ReduceDtype | None) -> int:
    """The bytes of one entry while it travels."""
    return 2 if is_reduced(dtype, reduce_dtype) else int(dtype.size)


def largest_summand(collectives: Collectives, reduce_dtype: ReduceDtype | None) -> float | None:
    """The largest value that a worker can send; None where its own dtype is the only limit."""
    if reduce_dtype != "float16" or collectives.size <= 2:
        return None
    return float(tf.float16.max) * _shared_divisor(collectives.size) / collectives.size


def sum_reduced(flat: tf.Tensor, collectives: Collectives, reduce_dtype: ReduceDtype) -> tf.Tensor:
    """The sum over workers of a flat tensor, in its dtype; it travels in `reduce_dtype`.

    Every worker gets the same bits. NaN and infinite entries stay so. float16 has few exponents:
    between two workers each scales by a power of two of its own, chosen by its largest value, which
    travels along. Among more, values are divided by the number of workers, as PyTorch's
    `fp16_compress_hook` does, so a sum overflows only beyond float16's largest value times that.
    """
    if collectives.size == 2:
        if reduce_dtype == "float16":
            return _gathered_halves(flat, collectives)
        row = flat[tf.newaxis]
        both = _from_pairs(collectives.gather_equal(_as_pairs(row)), like=row)
        return both[0] + both[1]
    if reduce_dtype == "bfloat16":
        return tf.cast(collectives.all_reduce(tf.cast(flat, tf.bfloat16)), flat.dtype)
    divisor = tf.cast(_shared_divisor(collectives.size), flat.dtype)
    total = collectives.all_reduce(tf.cast(flat / divisor, tf.float16))
    return tf.cast(total, flat.dtype) * divisor


def gather_reduced(
    slices: tf.IndexedSlices, collectives: Collectives, reduce_dtype: ReduceDtype
) -> tf.IndexedSlices:
    """All workers' rows by rank, as bfloat16 where that is asked for.

    Under float16 they travel as they are: rows are not added up on their way, so nothing is there
    to scale them by.
    """
    if reduce_dtype == "float16":
        return collectives.all_reduce(slices)
    pairs = tf.IndexedSlices(_as_pairs(slices.values), slices.indices)
    total = collectives.all_reduce(pairs)
    values = _from_pairs(total.values, like=slices.values)
    return tf.IndexedSlices(values, total.indices, slices.dense_shape)


def _shared_divisor(workers: int) -> int:
    """The least power of two that is not below the number of workers."""
    return 1 << math.ceil(math.log2(workers))


def _as_pairs(rows: tf.Tensor) -> tf.Tensor:
    """Rows as bfloat16, two entries in the bits of one float32.

    TensorFlow's gather copies bits, and takes no bfloat16.
    """
    width = _width(rows)
    values = tf.reshape(tf.cast(rows, tf.bfloat16), [-1, width])
    padded = tf.pad(values, [[0, 0], [0, width % 2]])
    return tf.bitcast(tf.reshape(padded, [-1, (width + 1) // 2, 2]), tf.float32)


def _from_pairs(pairs: tf.Tensor, *, like: tf.Tensor) -> tf.Tensor:
    """What `_as_pairs` made of rows such as `like`, in their dtype."""
    width, inner = _width(like), like.shape[1:]
    values = tf.reshape(tf.bitcast(pairs, tf.bfloat16), [-1, (width + 1) // 2 * 2])
    sizes = list(inner) if inner.is_fully_defined() else tf.unstack(tf.shape(like)[1:])
    return tf.cast(tf.reshape(values[:, :width], [-1, *sizes]), like.dtype)


def _width(rows: tf.Tensor) -> Any:
    """The entries of one row."""
    known = rows.shape[1:].num_elements()
    return tf.reduce_prod(tf.shape(rows)[1:]) if known is None else known


def _gathered_halves(flat: tf.Tensor, collectives: Collectives) -> tf.Tensor:
    largest = tf.cast(tf.reduce_max(tf.abs(flat)), tf.float32)
    exponent = tf.math.floor(tf.math.log(largest) / math.log(2.0)) - _HEADROOM
    exponent = tf.clip_by_value(exponent, _LEAST, _MOST)
    exponent = tf.where(tf.math.is_finite(largest) & (largest > 0), exponent, 0.0)
    scaled = tf.cast(flat * tf.cast(_power_of_two(-exponent), flat.dtype), tf.float16)
    sent = tf.concat([scaled, tf.cast(exponent, tf.float16)[tf.newaxis]], axis=0)
    halves = tf.split(collectives.gather_equal(sent), 2)
    factors = [tf.cast(_power_of_two(tf.cast(h[-1], tf.float32)), flat.dtype) for h in halves]
    first, second = (tf.cast(h[:-1], flat.dtype) * f for h, f in zip(halves, factors, strict=True))
    return first + second


def _power_of_two(exponent: tf.Tensor) -> tf.Tensor:
    """2 ** exponent to the last bit, float32, for whole exponents of -126 to 127."""
    return tf.bitcast(tf.bitwise.left_shift(tf.cast(exponent, tf.int32) + 127, 23), tf.float32)
