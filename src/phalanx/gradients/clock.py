"""The time, as a tensor of a step."""

from __future__ import annotations

import time

import tensorflow as tf


def now() -> tf.Tensor:
    """Seconds since 1970 by this machine's clock, scalar float64; each run of a graph reads anew.

    After `tf.config.experimental.enable_op_determinism`, TensorFlow refuses `tf.timestamp`.
    """
    if _is_refused():
        read = tf.numpy_function(time.time, [], tf.float64, stateful=True)
        read.set_shape([])
        return read
    return tf.timestamp()


def _is_refused() -> bool:
    try:
        with tf.init_scope(), tf.device("CPU:0"):
            tf.timestamp()
    except tf.errors.FailedPreconditionError:
        return True
    return False
