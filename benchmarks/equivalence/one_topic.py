"""Cases cut down to their one topic, so that a row shows what its name says.

In the tests nearly every case has an uneven last batch and an uneven first one to evaluate,
and some clip besides; plain Keras gets each of these wrong. In the table they have rows of
their own, and no other row has them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from equivalence_case import Case, default_held_out

ABOUT_UNEVEN = {
    "remainder_1",
    "only_1_samples",
    "only_2_samples",
    "batch_1",
    "uneven_first_batch",
    "repeated_with_steps",
    "steps_per_execution_unknown_length",
    "validation_uneven",
    "batchnorm_synchronized_few",
}
CLIPS_BESIDES = {"lazy_subclass", "run_eagerly", "own_train_step", "hand_written_loss"}
_BATCH = 8
_SAMPLES = 3 * _BATCH
_HELD_OUT_BATCH = 4
_HELD_OUT = 3 * _HELD_OUT_BATCH


def on_its_topic(case: Case) -> Case:
    """`case` with even batches and no clipping, but for what its topic is."""
    data = case.data if case.name in ABOUT_UNEVEN else lambda: _even_training(case.data())
    held_out = case.held_out or default_held_out
    build = (lambda: _unclipped(case.build())) if case.name in CLIPS_BESIDES else case.build
    return dataclasses.replace(
        case, build=build, data=data, held_out=lambda: _even_held_out(held_out())
    )


def _unclipped(model: keras.Model) -> keras.Model:
    model.optimizer.global_clipnorm = None
    return model


def _even_training(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: _cut(value, _SAMPLES) for name, value in arguments.items()}


def _even_held_out(arguments: dict[str, Any]) -> dict[str, Any]:
    cut = {name: _cut(value, _HELD_OUT) for name, value in arguments.items()}
    return {**cut, "batch_size": _HELD_OUT_BATCH}


def _cut(value: Any, samples: int) -> Any:
    if isinstance(value, np.ndarray):
        return value[:samples]
    if isinstance(value, dict):
        return {key: _cut(one, samples) for key, one in value.items()}
    if isinstance(value, tf.data.Dataset):
        return value.take(samples // _BATCH)
    if isinstance(value, keras.utils.PyDataset):
        value.x, value.y = value.x[:samples], value.y[:samples]
    if isinstance(value, tuple):  # validation data
        return tuple(_cut(one, _BATCH) for one in value)
    return value
