"""A few numbers that are equal where all bits of some variables are: to compare replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.checkpoint.replica_values import replica_components

_CHUNK = 1 << 22
_ODD = 0x5851F42D4C957F2D  # Knuth's multiplier for 64 bits
_INTEGER = {1: tf.uint8, 2: tf.int16, 4: tf.int32, 8: tf.int64}


def checksum(tensor: tf.Tensor) -> tf.Tensor:
    """The bits of a tensor as one int64, computed where the tensor lies.

    A change of one entry of up to 32 bits always changes it; that changes cancel out takes an
    accident of one in 2**64. Needs memory for some million entries at the most.
    """
    flat = tf.reshape(tensor, [-1])
    entries = flat.shape.num_elements()
    if entries is not None and entries <= _CHUNK:
        return _sum(flat)
    size = tf.size(flat)
    _, total = tf.while_loop(
        lambda begin, _: begin < size,
        lambda begin, so_far: (begin + _CHUNK, so_far + _sum(flat[begin : begin + _CHUNK])),
        (tf.constant(0), tf.constant(0, tf.int64)),
        parallel_iterations=1,
    )
    return total


def checksum_components(variables: Sequence[Any]) -> tf.Tensor:
    """`checksum` of each copy of Keras variables: int64, (replicas of this process, variables)."""
    columns = []
    for variable in variables:
        folded = []
        for copy in replica_components(variable):
            with tf.device(copy.device):
                folded.append(checksum(copy.read_value()))
        columns.append(folded)
    # A variable that no strategy has replicated is every replica's.
    local = max(len(folded) for folded in columns)
    full = [folded if len(folded) == local else [folded[0]] * local for folded in columns]
    return tf.stack([tf.stack(folded) for folded in full], axis=1)


def combine_checksums(folded: np.ndarray) -> np.ndarray:
    """One int64 for each replica; `folded` is what `checksum_components` returns."""
    factors = np.cumprod(np.full(folded.shape[1], _ODD, np.uint64), dtype=np.uint64)
    totals: np.ndarray = (folded.astype(np.uint64) * factors).sum(axis=1, dtype=np.uint64)
    return totals.view(np.int64)


def _sum(flat: tf.Tensor) -> tf.Tensor:
    if flat.dtype.is_bool:
        flat = tf.cast(flat, tf.uint8)
    bits = tf.cast(tf.bitcast(flat, _INTEGER[flat.dtype.size]), tf.int64)
    # A square, since in a plain sum +x and -x would cancel out.
    return tf.reduce_sum(bits * (bits + _ODD))
