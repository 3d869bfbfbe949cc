"""`jit_compile=True` on several replicas: XLA for the mathematics, not for the all-reduce.

XLA has no kernel for TensorFlow's collectives on CPUs, so what compiles is the forward
and backward pass of one replica; reduction and update follow outside. That split needs
Keras's own `train_step`; a model with one of its own trains without XLA.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import keras
import tensorflow as tf

from phalanx.gradients.share import current_share
from phalanx.seam.models import compute_loss, track_loss

_log = logging.getLogger(__name__)


def must_compile_apart(model: Any) -> bool:
    """Whether the model's gradients can be compiled apart; says so where they cannot."""
    if type(model).train_step is keras.Model.train_step:
        return True
    _log.warning(
        "jit_compile=True: %s has its own train_step, which XLA cannot compile together "
        "with an all-reduce; it trains on several replicas without XLA.",
        type(model).__name__,
    )
    return False


def compiled_train_step(model: Any) -> Callable[[Any], None]:
    """Keras's `train_step` with a compiled forward and backward pass."""

    def train_step(data: Any) -> None:
        # One function a trace and replica: each captures what is its own.
        compiled = tf.function(
            lambda x, y, weight: _gradients(model, x, y, weight),
            jit_compile=True,
            autograph=False,
            reduce_retracing=True,
        )
        gradients, loss = compiled(*keras.utils.unpack_x_y_sample_weight(data))
        if (share := current_share()) is not None:
            share.loss = loss  # the one it was told of lives in the compiled function
        model.optimizer.apply(gradients, model.trainable_variables)

    return train_step


def _gradients(model: Any, x: Any, y: Any, weight: Any) -> tuple[list[Any], Any]:
    share = current_share()
    looking = nullcontext() if share is None else share.looking_at((x, y, weight))
    with looking, tf.GradientTape() as tape:
        predicted = model(x, training=True)
        loss = compute_loss(model, x, y, predicted, weight)
        track_loss(model, loss, x)
        scaled = model.optimizer.scale_loss(loss)
    model.compute_metrics(x, y, predicted, sample_weight=weight)
    gradients: list[Any] = tape.gradient(scaled, model.trainable_variables)
    return gradients, loss
