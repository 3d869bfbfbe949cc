"""What `phalanx.fit` costs beside Keras's own `fit` on one device, in one process.

Both train the same models in turn, block by block, so that neither the machine's mood nor
the luck of one process's memory decides: the ratio of processor times is what counts.

    python benchmarks/one_device.py
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import keras
import numpy as np
import tensorflow as tf
from tables import Results, add_json_option, show

import phalanx

ROUNDS, STEPS, BATCH = 8, 60, 64
L = keras.layers


def cnn():
    return [
        keras.Input((28, 28, 1)),
        L.Conv2D(32, 3, activation="relu"),
        L.MaxPooling2D(),
        L.Conv2D(64, 3, activation="relu"),
        L.MaxPooling2D(),
        L.Flatten(),
        L.Dense(64, activation="relu"),
        L.Dense(10),
    ]


def mlp():
    hidden = [L.Dense(100, activation="relu") for _ in range(3)]
    return [keras.Input((28, 28, 1)), L.Flatten(), *hidden, L.Dense(10)]


def compiled(layers):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(layers())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    return model


def milliseconds(fit, model, x, y):
    started = time.process_time()
    fit(model, x, y, batch_size=BATCH, verbose=0)
    return (time.process_time() - started) / STEPS * 1e3


def compare(layers):
    """Median milliseconds a step of both, and the median of the rounds' ratios."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS * BATCH, 28, 28, 1)).astype("float32")
    y = rng.integers(0, 10, size=(len(x),))
    sides = {"keras": (keras.Model.fit, compiled(layers)), "ours": (phalanx.fit, compiled(layers))}
    for fit, model in sides.values():
        milliseconds(fit, model, x, y)
    rounds = [{k: milliseconds(*side, x, y) for k, side in sides.items()} for _ in range(ROUNDS)]
    ratio = statistics.median(r["ours"] / r["keras"] for r in rounds)
    return *(statistics.median(r[k] for r in rounds) for k in ("keras", "ours")), ratio


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_json_option(parser)
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    rows = []
    for layers in (cnn, mlp):
        theirs, ours, ratio = compare(layers)
        rows.append((layers.__name__, f"{theirs:.2f}", f"{ours:.2f}", f"{ratio:.2f}"))
    columns = ("model", "Keras 3 fit, CPU ms per step", "phalanx.fit", "ratio")
    show(Results(columns=columns, rows=rows), as_json=options.json)


if __name__ == "__main__":
    main()
