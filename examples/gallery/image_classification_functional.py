"""Image classification: a functional convolutional network with residual connections.

The images come from a `tf.data` pipeline that shuffles again in every epoch.
"""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SIZE, CLASSES = 12, 3

keras.utils.set_random_seed(41)


def shapes(count, rng):
    """Images of a disc, a square or a cross, somewhere."""
    label = rng.integers(0, CLASSES, count)
    row, column = rng.integers(3, SIZE - 3, (2, count, 1, 1))
    grid = np.mgrid[:SIZE, :SIZE]
    down, right = np.abs(grid[0] - row), np.abs(grid[1] - column)
    kinds = np.stack(
        [down**2 + right**2 <= 8, (down < 3) & (right < 3), (down == 0) | (right == 0)]
    )
    images = kinds[label, np.arange(count)] + rng.normal(0, 0.2, (count, SIZE, SIZE))
    return images[..., None].astype("float32"), label


def make_model():
    inputs = keras.Input((SIZE, SIZE, 1))
    x = layers.RandomFlip("horizontal")(inputs)
    x = layers.RandomRotation(0.1)(x)
    x = layers.Rescaling(0.5)(x)
    x = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(x)
    previous = x
    for size in (12, 16):
        x = layers.SeparableConv2D(size, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
        residual = layers.Conv2D(size, 1, strides=2, padding="same")(previous)
        x = layers.add([x, residual])
        previous = x
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dropout(0.25)(x)
    return keras.Model(inputs, layers.Dense(CLASSES)(x))


rng = np.random.default_rng(42)
train = tf.data.Dataset.from_tensor_slices(shapes(165, rng)).shuffle(200, seed=1).batch(31)
valid = tf.data.Dataset.from_tensor_slices(shapes(49, rng)).batch(31)

model = make_model()
model.compile(
    optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
)
history = model.fit(train, epochs=3, validation_data=valid, verbose=2).history
result = {**history, "evaluated": model.evaluate(valid, verbose=0)}
print("RESULT", json.dumps(result))
