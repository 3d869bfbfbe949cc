"""One of the two workers: trains the same layers in each way, in turn, and times it.

The chief prints one line of JSON: milliseconds by name, a list for each.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from itertools import pairwise
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from waiting import Wait

import phalanx
from phalanx.cluster.reduce_options import ReduceOptions
from phalanx.worker.devices import limit_threads
from slow_links.ways import WAYS

LAYERS = 8
UNITS = 1118
"""8 kernels of 1118 x 1118 float32 are 40 MB."""

ENTRIES = LAYERS * UNITS * (UNITS + 1)
CALIBRATION_ROWS = 128


def made(seconds: float) -> Any:
    """The model; waits for `seconds` a step in all where that is not 0."""
    model = keras.Sequential([keras.Input((UNITS,))])
    third = seconds / LAYERS / 3
    for _ in range(LAYERS):
        if seconds:
            model.add(Wait(0.0, third))  # for the gradient of what the layer takes
        model.add(keras.layers.Dense(UNITS))
        if seconds:
            model.add(Wait(third, third))  # for the layer, and for the gradient of its kernel
    # One step a call, so that the end of each is seen.
    model.compile(keras.optimizers.SGD(1e-6), "mse", jit_compile=False, steps_per_execution=1)
    return model


def data(rows: int, steps: int) -> Any:
    """`steps` global batches of `rows` rows for each worker."""
    x = np.random.default_rng(0).normal(size=(2 * rows, UNITS)).astype("float32")
    one = tf.data.Dataset.from_tensors((x, x))
    return one.repeat(steps).apply(tf.data.experimental.assert_cardinality(steps))


class Ends(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes when each step ends."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        del batch, logs
        self.times.append(time.perf_counter())


def fit_ms(model: Any, rows: int, steps: int) -> list[float]:
    """Milliseconds of each step of a short `fit` but the first."""
    ends = Ends()
    batches = data(rows, steps + 1)
    phalanx.fit(model, batches, epochs=1, verbose=0, shuffle=False, callbacks=[ends])
    return [1000 * (b - a) for a, b in pairwise(ends.times)]


def alone_ms(seconds: float, rows: int, rounds: int) -> list[float]:
    """Milliseconds of a step that exchanges nothing."""
    model = made(seconds)
    x = tf.random.normal([rows, UNITS])

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - x) ** 2)
        variables = [v.value for v in model.trainable_variables]
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(1e-6 * gradient)

    return timed(step, rounds)


def timed(step: Any, rounds: int) -> list[float]:
    """Milliseconds of each call but the first two."""
    taken = []
    for _ in range(rounds + 2):
        begin = time.perf_counter()
        step()
        taken.append(1000 * (time.perf_counter() - begin))
    return taken[2:]


def main() -> None:
    """Measure; the argument is JSON."""
    requested = json.loads(sys.argv[1])
    ways = {name: WAYS[name] for name in requested["ways"]}
    limit_threads(1)
    keras.utils.set_random_seed(1)
    strategy = phalanx.strategy("multiworker")
    collectives = strategy.collectives

    @tf.function
    def sending(dtype: Any) -> Any:
        return collectives.all_reduce(tf.zeros([ENTRIES], dtype))

    found: dict[str, list[float]] = {
        f"sending alone, {dtype.name}": timed(lambda d=dtype: sending(d), requested["rounds"])
        for dtype in (tf.float32, tf.bfloat16)
    }
    seconds, rows = statistics.median(found["sending alone, float32"]) / 1000, 8
    if requested["compute"] == "multiply":
        took = statistics.median(alone_ms(0.0, CALIBRATION_ROWS, 3)) / 1000
        seconds, rows = 0.0, max(8, round(CALIBRATION_ROWS * seconds / took))
    else:
        seconds = requested["compute_ms"] / 1000 if requested["compute_ms"] else seconds
        seconds -= statistics.median(alone_ms(0.0, rows, 3)) / 1000
    shared = collectives.broadcast([tf.constant(seconds), tf.constant(rows)])
    seconds, rows = float(shared[0]), int(shared[1])
    found["computing alone"] = alone_ms(seconds, rows, requested["rounds"])
    models = {}
    with strategy.scope():
        for name in ways:
            models[name] = made(seconds)
            found[name] = []
        for number in range(requested["rounds"] + 1):
            for name, options in ways.items():
                strategy.reduce_options = ReduceOptions(**options)
                took = fit_ms(models[name], rows, requested["steps"])
                if number:  # the first traces
                    found[name] += took
    if collectives.rank == 0:
        print(json.dumps(found), flush=True)
    collectives.barrier()


if __name__ == "__main__":
    main()
