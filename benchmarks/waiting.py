"""A layer that waits, in the place of one that computes."""

from __future__ import annotations

import time
from typing import Any

import keras
import tensorflow as tf


@tf.custom_gradient
def waiting(x: tf.Tensor, forward: tf.Tensor, backward: tf.Tensor) -> Any:
    """`x`, after a wait; its gradient after another."""

    def gradient(upstream: tf.Tensor) -> Any:
        return _after(upstream, backward), None, None

    return _after(x, forward), gradient


def _after(x: tf.Tensor, seconds: tf.Tensor) -> tf.Tensor:
    def wait(value: Any, duration: Any) -> Any:
        time.sleep(float(duration))
        return value

    later = tf.numpy_function(wait, [x, seconds], x.dtype)
    later.set_shape(x.shape)
    return later


class Wait(keras.layers.Layer):  # type: ignore[misc]
    """A wait in the forward pass and one in the backward pass, which take no core."""

    def __init__(self, forward: float, backward: float) -> None:
        super().__init__()
        self._forward, self._backward = forward, backward

    def call(self, x: Any) -> Any:
        """See `keras.layers.Layer`."""
        return waiting(x, tf.constant(self._forward), tf.constant(self._backward))
