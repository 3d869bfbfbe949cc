"""What `fit` does by default to find what is wrong, on its own: in loops of a graph, and in Python.

See debugging.py.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import keras
import numpy as np
import tensorflow as tf
from fit_steps import steps_of
from recording import BATCH, seconds_of
from step_time.environment import ROOT

import phalanx
from phalanx import clip
from phalanx.distributed.host_collectives import all_gather_rows
from phalanx.distributed.topology import topology_of
from phalanx.gradients.checked_all_reduce import (
    ReducedGradients,
    are_finite,
    can_overflow,
    each_is_finite,
)
from phalanx.gradients.nonfinite import NonFiniteGuard
from phalanx.monitoring.flight_recorder import flight
from phalanx.monitoring.phase_tracker import PhaseTracker
from phalanx.training.batch_arrivals import GraphBatchProbe
from phalanx.training.execution_size import SECONDS

sys.path.insert(0, str(ROOT / "examples"))
from mnist import build_model

WORKERS = 2
TIMES = 200
"""How often a loop does what is measured."""

EXECUTIONS = 7

PHASES = ("callbacks", "compute", "callbacks", "compute")


def perceptron():
    """100,000 parameters."""
    layers = [keras.Input((784,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)]
    return keras.Sequential(layers), np.random.default_rng(0).random((BATCH * 25, 784), "float32")


def mnist():
    """The model of examples/mnist.py."""
    return build_model(), np.random.default_rng(0).random((BATCH * 25, 28, 28, 1), "float32")


@dataclass(frozen=True, kw_only=True)
class DebuggingCost:
    """Seconds, medians.

    Attributes:
        step: of a step that looks for nothing.
        steps: how many steps `fit` runs in one execution.
        check: of the check for non-finite gradients, each step.
        arrival: of noting in the graph that a batch has come, each step.
        python: of the calls to the flight recorder, each execution.
    """

    step: float
    steps: int
    check: float
    arrival: float
    python: float

    @property
    def each_step(self) -> float:
        """All of it, for a step."""
        return self.check + self.arrival + self.python / self.steps


def cost_of(make: Callable, batch: int, rounds: int) -> DebuggingCost:
    """What it costs the steps of a model, on one of several workers.

    Args:
        make: gives a model and its inputs.
        batch: samples a worker.
        rounds: how often each is measured.
    """
    model, x = make()
    x = np.concatenate([x] * (batch // BATCH))
    step, steps = _step(model, x, batch)
    with_check, without = _apply_loop(model, x[:batch], True), _apply_loop(model, x[:batch], False)
    noted, empty = _arrival_loop(x[:batch], True), _arrival_loop(x[:batch], False)
    with tempfile.TemporaryDirectory() as directory:
        flight.open(Path(directory) / "worker-0.flight", rank=0, attempt=0, workers=1)
        calls = _recorder_calls()
        laps = [
            [seconds_of(each) for each in (with_check, without, noted, empty, calls)]
            for _ in range(rounds + 1)
        ]
        flight.close()
    checked, bare, arrived, nothing, python = np.array(laps[1:]).T / TIMES
    return DebuggingCost(
        step=step,
        steps=steps,
        check=median(checked - bare),
        arrival=median(arrived - nothing),
        python=median(python),
    )


def _step(model: keras.Model, x: np.ndarray, batch: int) -> tuple[float, int]:
    """Seconds of a step without what is measured, and how many of them `fit` runs in one call."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(clip.attach(keras.optimizers.SGD(), on_nonfinite="ignore"), loss)
    with ExitStack() as stages:
        run = steps_of(stages, model, x, batch * WORKERS)

        def seconds(steps: int) -> float:
            laps = [seconds_of(partial(run, steps)) for _ in range(EXECUTIONS)]
            return median(laps[1:]) / steps

        # All workers run as many: they exchange gradients.
        strategy = phalanx.strategy()
        topology = topology_of(strategy)
        first = all_gather_rows(strategy, topology, np.array([seconds(3)]))
        steps = max(1, int(SECONDS / first[0, 0]))
        return seconds(steps), steps


def _apply_loop(model: keras.Model, x: np.ndarray, checks: bool) -> Callable[[], object]:
    """Apply the gradients of `model` again and again, with the check or without.

    It has one packed piece for all, as several workers have.
    """
    weights = [tf.Variable(tf.zeros(v.shape)) for v in model.trainable_variables]
    sizes = [int(tf.size(w)) for w in weights]
    sums = tf.Variable(tf.random.normal([sum(sizes)]))
    iteration = tf.Variable(0, dtype=tf.int64)
    guard = NonFiniteGuard(tf.distribute.get_strategy(), "raise")
    batch = tf.Variable(x)

    def apply(gradients) -> None:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(1e-9 * gradient)
        iteration.assign_add(1)

    def once(number) -> None:
        del number
        packed, inputs = sums.read_value(), batch.read_value()

        def keep(*said) -> tf.Tensor:
            tf.print(inputs, said)
            return tf.constant(True)

        pieces = tf.split(packed, sizes)
        total = [tf.reshape(p, w.shape) for p, w in zip(pieces, weights, strict=True)]
        if not checks:
            apply(total)
            return
        checked = ReducedGradients(
            total=total,
            finite=are_finite([packed]),
            own=lambda: (~each_is_finite([packed]), can_overflow([packed], WORKERS)),
        )
        guard.apply(checked, apply, step=iteration.read_value(), replica=0, keep=keep)

    return _repeated(once)


def _arrival_loop(x: np.ndarray, notes: bool) -> Callable[[], object]:
    """Take a batch again and again, and note it or not."""
    probe, batch, taken = GraphBatchProbe(), tf.Variable(x), tf.Variable(0.0)
    labels = tf.Variable(tf.zeros([len(x)], tf.int64))

    def once(number) -> None:
        inputs = batch.read_value()
        if notes:
            probe.note((inputs, labels.read_value()), number + 1)
        taken.assign_add(tf.reshape(inputs, [-1])[0])

    return _repeated(once)


def _repeated(once: Callable[[tf.Tensor], None]) -> Callable[[], object]:
    """`once`, given its number, so often: in a loop of one graph, as an execution has its steps."""

    @tf.function(autograph=False)
    def loop() -> None:
        def body(number):
            with tf.control_dependencies([number]):
                once(number)
            return (number + 1,)

        tf.while_loop(lambda n: n < TIMES, body, (tf.constant(0),), parallel_iterations=1)

    return loop


def _recorder_calls() -> Callable[[], None]:
    """The Python calls of an execution to the flight recorder, as often."""
    phase_tracker, arrivals = PhaseTracker(), GraphBatchProbe()
    phase_tracker.follow(flight)

    def calls() -> None:
        for _ in range(TIMES):
            for phase in PHASES:
                phase_tracker.enter(phase)
            with flight.execution("train", 1, arrivals):
                pass

    return calls
