"""Transfer learning: train a small base, freeze it under a new head, then fine-tune."""

import json
import os

import keras
import numpy as np
from keras import layers

SIZE = 10

keras.utils.set_random_seed(21)


def stripes(count, rng):
    """Images with stripes of eight directions and the directions."""
    label = rng.integers(0, 8, count)
    grid = np.mgrid[:SIZE, :SIZE]
    angle = label * np.pi / 8
    wave = np.sin(
        grid[0] * np.cos(angle)[:, None, None]
        + grid[1] * np.sin(angle)[:, None, None]
        + rng.uniform(0, 2 * np.pi, (count, 1, 1))
    )
    return (wave + rng.normal(0, 0.1, wave.shape))[..., None].astype("float32"), label


def build_base():
    inputs = keras.Input((SIZE, SIZE, 1))
    x = layers.Conv2D(8, 3, padding="same", use_bias=False)(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.Activation("relu")(x)
    x = layers.SeparableConv2D(16, 3, strides=2, activation="relu")(x)
    return keras.Model(inputs, x, name="base")


rng = np.random.default_rng(22)
x, direction = stripes(203, rng)
x_new, new_direction = stripes(61, rng)
y_new = (new_direction < 4).astype("float32")

# 1. The base learns another task.
base = build_base()
head = keras.Sequential([base, layers.GlobalMaxPooling2D(), layers.Dense(8)])
head.compile(
    keras.optimizers.SGD(0.05),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
pretraining = head.fit(x, direction, batch_size=45, epochs=3, verbose=2).history
os.makedirs("transfer_learning_weights", exist_ok=True)
base.save_weights("transfer_learning_weights/base.weights.h5")

# 2. A frozen base under a new head.
base = build_base()
base.load_weights("transfer_learning_weights/base.weights.h5")
base.trainable = False
inputs = keras.Input((SIZE, SIZE, 1))
apply_augmentation = layers.RandomTranslation(0.1, 0.1)(inputs)
features = base(apply_augmentation, training=False)
features = layers.GlobalAveragePooling2D()(features)
features = layers.Dropout(0.2)(features)
outputs = layers.Dense(1)(features)
model = keras.Model(inputs, outputs)
loss = keras.losses.BinaryCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.01), loss, metrics=[keras.metrics.BinaryAccuracy()])
frozen_before = [np.copy(w) for w in base.get_weights()]
frozen = model.fit(x_new, y_new, batch_size=17, epochs=3, verbose=2).history
assert all(np.array_equal(a, b) for a, b in zip(frozen_before, base.get_weights(), strict=True))

# 3. Fine-tuning: the base is unfrozen, but its BatchNormalization stays in inference mode.
base.trainable = True
model.compile(keras.optimizers.Adam(1e-4), loss, metrics=[keras.metrics.BinaryAccuracy()])
tuned = model.fit(x_new, y_new, batch_size=17, epochs=2, verbose=2).history

result = {
    "pretraining_loss": pretraining["loss"],
    "frozen_loss": frozen["loss"],
    "frozen_accuracy": frozen["binary_accuracy"],
    "tuned_loss": tuned["loss"],
    "tuned_accuracy": tuned["binary_accuracy"],
    "predicted": float(np.mean(keras.ops.sigmoid(model.predict(x_new, verbose=0)))),
    "trainable": len(model.trainable_weights),
}
print("RESULT", json.dumps(result))
