"""The moving averages of weights (`use_ema`) where parameter servers keep both.

Keras reads an average, moves it and assigns it, so that of two workers one would be lost. Here the
server adds the change, shard by shard, and nothing is lost.

Private names used: `Optimizer._model_variables_moving_average`, `_get_variable_index`; guarded by
tests/parameter_server/test_server_canaries.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from phalanx.keras_compat.ps_variables import shards_of, value_of


def begin_averages(optimizer: Any) -> None:
    """In the chief, before the first step: an average begins with the weight itself.

    Keras lets the first step set it, which several workers would take at once.
    """
    if not optimizer.use_ema or int(optimizer.iterations.numpy()):
        return
    averages = optimizer._model_variables_moving_average
    for variable, average in zip(optimizer._trainable_variables, averages, strict=True):
        if average is not None:
            average.assign(variable)


def move_averages(optimizer: Any, variables: Sequence[Any]) -> None:
    """In a worker's step, after the update of `variables`."""
    if not optimizer.use_ema:
        return
    is_first = tf.equal(tf.identity(value_of(optimizer.iterations)), 0)
    for variable in variables:
        average = optimizer._model_variables_moving_average[optimizer._get_variable_index(variable)]
        if average is None:
            continue
        for weight, moved in zip(shards_of(variable), shards_of(average), strict=True):
            with tf.device(moved.device):
                share = tf.where(is_first, 1.0, 1.0 - optimizer.ema_momentum)
                moved.assign_add((weight - moved) * tf.cast(share, moved.dtype), read_value=False)


def take_averages(optimizer: Any, variables: Sequence[Any]) -> None:
    """In the chief, where training ends: what Keras's optimizer does then, shard by shard."""
    if not optimizer.use_ema:
        optimizer.finalize_variable_values(variables)
        return
    for variable in variables:
        average = optimizer._model_variables_moving_average[optimizer._get_variable_index(variable)]
        if average is not None:
            for weight, moved in zip(shards_of(variable), shards_of(average), strict=True):
                weight.assign(moved)
