"""The training that is disturbed: small, with all that must come back exactly.

    phalanx run ... training.py CHECKPOINTS RESULTS RETRIES arrays|pipeline

Dropout, shuffled data, a slot-keeping optimizer, metrics, validation, callbacks with a memory,
an uneven last batch, checkpoints in the middle of epochs.
"""

import json
import os
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import phalanx
from phalanx.callbacks import Checkpoint, every_n_steps

EPOCHS, SAMPLES, BATCH, SAVE_EVERY = 6, 60, 7, 4

rank = phalanx.rank()
if rank == phalanx.world_size() - 1 == 2 and Path(os.environ["SOAK_BROKEN"]).exists():
    raise OSError("this worker cannot start for a while")


class Progress(keras.callbacks.Callback):
    """Writes down the step that is complete, how many were trained in all, and their seconds.

    A step begins where the one before ended, so it includes the wait for its batch, unless a
    checkpoint was saved between them. The time from the last step to the validation belongs to
    that step: `fit` reads the metrics.
    """

    def __init__(self):
        super().__init__()
        self._file = Path(os.environ["SOAK_PROGRESS"])
        self._trained = int(self._file.read_text().split()[1]) if self._file.exists() else 0
        self._steps = Path(results, "steps.jsonl").open("a", buffering=1)  # noqa: SIM115

    def on_train_begin(self, logs=None):
        self._began = time.perf_counter()

    def on_test_end(self, logs=None):
        self._began = time.perf_counter()  # Before an epoch, workers may wait for each other.

    def on_train_batch_begin(self, batch, logs=None):
        if self._saves():
            self._began = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        step = self._write_seconds()
        self._trained += 1
        partial = self._file.with_suffix(".part")
        partial.write_text(f"{step} {self._trained}")
        partial.replace(self._file)
        self._began = time.perf_counter()

    def on_test_begin(self, logs=None):
        if not self._saves():
            self._write_seconds()

    def _saves(self):
        return int(self.model.optimizer.iterations) % SAVE_EVERY == 0

    def _write_seconds(self):
        seconds = time.perf_counter() - self._began
        step = int(self.model.optimizer.iterations)
        self._steps.write(json.dumps([os.getpid(), step, seconds]) + "\n")
        return step


checkpoints, results, retries, kind = sys.argv[1:]
rng = np.random.default_rng(0)
x = rng.normal(size=(SAMPLES, 4)).astype("float32")
y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")
data = {"x": x, "y": y, "batch_size": BATCH}
if kind == "pipeline":
    data = {"x": tf.data.Dataset.from_tensor_slices((x, y)).shuffle(20, seed=3).batch(BATCH)}
model = keras.Sequential(
    [
        keras.Input((4,)),
        keras.layers.Dense(8, activation="relu"),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.Adam(0.01, use_ema=True), "binary_crossentropy", metrics=["AUC"])
history = model.fit(
    **data,
    epochs=EPOCHS,
    validation_data=(x[:20], y[:20]),
    callbacks=[
        keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=0.5),
        Checkpoint(
            checkpoints, every=every_n_steps(SAVE_EVERY), max_to_keep=2, max_retries=int(retries)
        ),
        *([Progress()] if rank == 0 else []),
    ],
    verbose=0,
).history

outcome = {
    "history": {n: list(map(float, v)) for n, v in history.items()},
    "variables": [
        float(number)
        for variable in [*model.variables, *model.optimizer.variables]
        for number in np.ravel(variable.numpy())
    ],
}
(Path(results) / f"result-{rank}.json").write_text(json.dumps(outcome, sort_keys=True))
