"""A training step, and beside it what looks for what is wrong, on one of several workers.

See debugging.py.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import keras
import numpy as np
import tensorflow as tf
from recording import BATCH, seconds_of
from step_time.environment import ROOT

from phalanx.gradients.finite import is_finite, said_of
from phalanx.gradients.health import Health
from phalanx.training.arrivals import GraphArrivals
from phalanx.training.executor import Executor
from phalanx.training.kept_step import keeping_place
from phalanx.training.prepare import make_function, on_stage, open_source
from phalanx.worker.flight import flight
from phalanx.worker.pulse import Pulse

sys.path.insert(0, str(ROOT / "examples"))
from mnist import build_model

WORKERS = 2
STEPS, UNCOUNTED = 200, 20
"""Of a round."""

PHASES = ("callbacks", "compute", "callbacks", "compute")


def mnist():
    """The model of examples/mnist.py."""
    return build_model(), np.random.default_rng(0).random((BATCH * 25, 28, 28, 1), "float32")


def rounds_of(make: Callable, batch: int, rounds: int) -> list[list[float]]:
    """For each round the seconds of a step, of the check, and of the recorder's two parts."""
    return [_round(make, batch) for _ in range(rounds)]


def _round(make: Callable, batch: int) -> list[float]:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stages:
        keeping_place().folder = Path(directory)
        flight.open(Path(directory) / "worker-0.flight", rank=0, attempt=0, workers=1)
        stages.callback(flight.close)
        model, x = make()
        x = np.concatenate([x] * (batch // BATCH))
        rows = tf.constant(x[:batch])
        checked, unchecked = _applying([w.numpy() for w in model.trainable_variables], rows)
        noted, unnoted = _noting(rows)
        told, step = _told(), _step(model, x, batch, stages)
        actions = (step, checked, unchecked, told, noted, unnoted)
        laps = [[seconds_of(action) for action in actions] for _ in range(STEPS)]
    whole, checked, unchecked, told, noted, unnoted = (
        median(each) for each in zip(*laps[UNCOUNTED:], strict=True)
    )
    return [whole, checked - unchecked, told, noted - unnoted]


def _step(model: keras.Model, x: np.ndarray, batch: int, stages: ExitStack) -> Callable[[], None]:
    """A step as `fit` runs it."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(), loss)
    stage = stages.enter_context(on_stage(model))
    y = np.zeros(len(x), "int64")
    source = open_source(stage, "fit", 0, x, y, batch_size=batch * WORKERS)
    executor = Executor(model, make_function(stage, "train", source), [])
    iterator = source.open(0)
    return lambda: executor.run(iterator, 1)


def _applying(weights: list[np.ndarray], rows: tf.Tensor) -> tuple[Callable, Callable]:
    """What applies gradients if they are finite, as two replicas do; what applies them anyway."""
    health = Health(tf.distribute.get_strategy(), "raise")
    variables = [tf.Variable(weight) for weight in weights]
    gradients = [tf.random.normal(weight.shape, stddev=1e-6) for weight in weights]
    steps = tf.Variable(0, dtype=tf.int64)

    def apply(total: list[tf.Tensor]) -> None:
        for variable, gradient in zip(variables, total, strict=True):
            variable.assign_sub(0.01 * gradient)
        steps.assign_add(1)

    @tf.function
    def checked(total: list[tf.Tensor], batch: tf.Tensor) -> None:
        said = tf.one_hot(0, 2) * said_of(total)
        finite = is_finite(total, said)
        health.apply(
            total, finite, tf.floor(said)[:1], steps, apply, lambda *_: tf.reduce_sum(batch)
        )

    @tf.function
    def unchecked(total: list[tf.Tensor], batch: tf.Tensor) -> None:
        apply(total)

    return lambda: checked(gradients, rows), lambda: unchecked(gradients, rows)


def _noting(rows: tf.Tensor) -> tuple[Callable, Callable]:
    """What notes in a graph that a batch has come; the like graph that does not."""
    arrivals = GraphArrivals()

    @tf.function
    def noted(batch: tf.Tensor) -> tf.Tensor:
        arrivals.note((batch,), 1)
        return tf.shape(batch)[0]

    @tf.function
    def unnoted(batch: tf.Tensor) -> tf.Tensor:
        return tf.shape(batch)[0]

    return lambda: noted(rows), lambda: unnoted(rows)


def _told() -> Callable[[], None]:
    """What a step tells the flight recorder in Python."""
    pulse, arrivals = Pulse(), GraphArrivals()
    pulse.follow(flight)

    def told() -> None:
        for phase in PHASES:
            pulse.enter(phase)
        with flight.execution("train", 1, arrivals):
            pass

    return told
