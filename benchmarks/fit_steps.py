"""Training steps as `fit` runs them, several in one call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import keras
import numpy as np
import tensorflow as tf

from phalanx.training.context import call_context, make_function, open_source
from phalanx.training.step_runner import StepRunner


def steps_of(
    stages: ExitStack, model: keras.Model, x: np.ndarray, batch: int
) -> Callable[[int], None]:
    """What runs so many steps in one call and waits for the device, while `stages` are open.

    Args:
        stages: takes the context of the steps.
        model: a compiled classifier.
        x: its inputs.
        batch: samples of all workers.
    """
    stage = stages.enter_context(call_context(model))
    source = open_source(stage, "fit", 0, x, np.zeros(len(x), "int64"), batch_size=batch)
    runner = StepRunner(model, make_function(stage, "train", source), [])
    iterator = source.open(0)

    def run(steps: int) -> None:
        _, outputs = runner.run(iterator, steps)
        for value in filter(tf.is_tensor, tf.nest.flatten(outputs)):
            value.numpy()

    return run
