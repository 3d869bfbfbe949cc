"""Branches of a `tf.cond` that are hardly ever taken."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf


def rarely(branch: Callable[[], tf.Tensor]) -> Callable[[], tf.Tensor]:
    """`branch` as one operation of the graph.

    TensorFlow writes both branches of a `tf.cond` into the graph around it, where each operation of
    the one that is not taken still costs a microsecond; a function that may not be written out is
    one operation, whatever is in it.
    """
    if tf.executing_eagerly():
        return branch
    function: Callable[[], tf.Tensor] = tf.function(
        branch, autograph=False, experimental_attributes={"_noinline": True}
    )
    return function
