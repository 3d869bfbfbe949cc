"""The training whose coordination is measured: `fit` and a bare loop, in turn, in each worker.

    phalanx run --workers N train.py STEPS ROUNDS

A step waits for 50 ms in the place of computing. The chief prints `BEGIN` when all is traced, and
at the end the milliseconds of a step of each round, as JSON.
"""

import json
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parents[1]))
from waiting import Wait

STEPS, ROUNDS = int(sys.argv[1]), int(sys.argv[2])
SECONDS, ROWS, HIDDEN = 0.05, 2, (100, 100, 100)


class Clock(keras.callbacks.Callback):
    """Measures each epoch."""

    def __init__(self):
        super().__init__()
        self.ms = []

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.ms.append((time.perf_counter() - self.began) / STEPS * 1e3)


def model():
    layers = [keras.layers.Dense(units, activation="relu") for units in HIDDEN]
    made = keras.Sequential(
        [keras.Input((784,)), Wait(SECONDS, 0.0), *layers, keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(keras.optimizers.SGD(1e-3), loss)
    return made


def bare_step(made, collectives):
    """One traced step: the gradients travel in one piece."""
    variables = [v.value for v in made.trainable_variables]
    shapes = [v.shape for v in variables]

    @tf.function(autograph=False)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = made.loss(y, made(x, training=True))
        gradients = tape.gradient(loss, variables)
        packed = tf.concat([tf.reshape(g, [-1]) for g in gradients], 0)
        total = collectives.all_reduce(packed) if collectives else packed
        pieces = tf.split(total, [shape.num_elements() for shape in shapes])
        for variable, piece, shape in zip(variables, pieces, shapes, strict=True):
            variable.assign_sub(1e-3 * tf.reshape(piece, shape))

    return step


def main():
    strategy = tf.distribute.get_strategy()
    workers = strategy.num_replicas_in_sync
    collectives = strategy.collectives if workers > 1 else None
    is_chief = not collectives or collectives.rank == 0
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(1).random((STEPS * ROWS * workers, 784), np.float32)
    y = np.zeros(len(x), np.int64)
    trained, looped, clock = model(), model(), Clock()
    step, loop_ms = bare_step(looped, collectives), []
    own = tf.constant(x[:ROWS]), tf.constant(y[:ROWS])
    for number in range(ROUNDS + 1):
        trained.fit(x, y, batch_size=ROWS * workers, epochs=2, verbose=0, callbacks=[clock])
        step(*own)  # All meet here.
        began = time.perf_counter()
        for _ in range(STEPS):
            step(*own)
        loop_ms.append((time.perf_counter() - began) / STEPS * 1e3)
        if not number and is_chief:
            print("BEGIN", flush=True)
    if is_chief:
        print("END", json.dumps({"fit": clock.ms[3::2], "loop": loop_ms[1:]}), flush=True)


main()
