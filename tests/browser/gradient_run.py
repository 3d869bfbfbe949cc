"""Plain Keras with a gradient logger, small, for two workers of `phalanx run`."""

import keras
import numpy as np

import phalanx

SAMPLES, CLASSES = 2560, 10

rng = np.random.default_rng(0)
y = rng.integers(0, CLASSES, SAMPLES)
patterns = rng.normal(size=(CLASSES, 12, 12, 1))
x = (patterns[y] + 2.0 * rng.normal(size=(SAMPLES, 12, 12, 1))).astype("float32")

model = keras.Sequential(
    [
        keras.Input((12, 12, 1)),
        keras.layers.Conv2D(8, 3, activation="relu", name="conv"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(32, activation="relu", name="hidden"),
        keras.layers.Dense(CLASSES, name="head"),
    ],
    name="cnn",
)
model.compile(
    optimizer=keras.optimizers.Adam(3e-3, global_clipnorm=2.0),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
logger = phalanx.callbacks.GradientLogger(every_n_steps=10, max_overhead=None)
model.fit(x, y, batch_size=64, epochs=8, verbose=0, callbacks=[logger])
