"""Plain Keras with faults on purpose, for `phalanx run`: a slow worker, and one killed or frozen.

phalanx run --workers 3 --max-restarts 1 faulty_run.py kill
phalanx run --workers 4 faulty_run.py freeze
"""

import sys

import keras
import numpy as np

import phalanx
from phalanx.testing import chaos

SAMPLES, CLASSES, EPOCHS, KILLED, FROZEN = 3840, 10, 4, 140, 100

FAULTS = {
    "kill": chaos.Kill(worker=1, step=KILLED),
    "freeze": chaos.Freeze(worker=1, step=FROZEN),
}
SLOW = chaos.SlowDown(worker=2, step=5, seconds=0.1, steps=1000, every_attempt=True)

rng = np.random.default_rng(0)
y = rng.integers(0, CLASSES, SAMPLES)
patterns = rng.normal(size=(CLASSES, 16, 16, 1))
x = (patterns[y] + 3.0 * rng.normal(size=(SAMPLES, 16, 16, 1))).astype("float32")

model = keras.Sequential(
    [
        keras.Input((16, 16, 1)),
        keras.layers.Conv2D(16, 3, activation="relu", name="conv"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu", name="hidden"),
        keras.layers.Dense(CLASSES, name="head"),
    ],
    name="cnn",
)
rate = keras.optimizers.schedules.CosineDecay(1e-3, EPOCHS * SAMPLES * 4 // 5 // 48)
model.compile(
    optimizer=keras.optimizers.Adam(rate, global_clipnorm=3.0),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
every = phalanx.callbacks.every_n_steps(60)
callbacks = [
    phalanx.callbacks.Checkpoint(every=every, max_to_keep=10),
    phalanx.callbacks.GradientLogger(every_n_steps=10, max_overhead=None),
    phalanx.callbacks.StragglerDetector(every_n_seconds=2.0),
    phalanx.callbacks.ThroughputMonitor(every_n_seconds=2.0),
    chaos.Chaos([SLOW, FAULTS[sys.argv[1]]]),
]
model.fit(x, y, batch_size=48, epochs=EPOCHS, validation_split=0.2, verbose=0, callbacks=callbacks)
