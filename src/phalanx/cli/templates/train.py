"""An image classifier in Keras, written by `phalanx init`: put your data and your model here.

python train.py                      # plain Keras on one device
phalanx run --workers 2 train.py     # two workers
"""

import argparse

import keras
import numpy as np

import phalanx

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--samples", type=int, default=4000)
args = parser.parse_args()

# Noisy images of ten classes, float32 of shape (samples, 16, 16, 1). Every worker makes all of
# them: Phalanx selects the rows of each worker.
rng = np.random.default_rng(0)
y = rng.integers(0, 10, args.samples)
patterns = rng.normal(size=(10, 16, 16, 1))
x = (patterns[y] + 3.0 * rng.normal(size=(args.samples, 16, 16, 1))).astype("float32")

model = keras.Sequential(
    [
        keras.Input((16, 16, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(1e-3, global_clipnorm=1.0),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)

callbacks = []
if phalanx.is_enabled():  # under `phalanx run`
    callbacks.append(phalanx.callbacks.GradientLogger(every_n_steps=10))  # for TensorBoard
    callbacks.append(phalanx.callbacks.Checkpoint())  # a restarted run continues from here

# batch_size is that of all workers together.
model.fit(
    x,
    y,
    batch_size=100,
    epochs=args.epochs,
    validation_split=0.2,
    callbacks=callbacks,
    verbose=2,
)
