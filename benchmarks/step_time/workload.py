"""What every contender trains: two models, one optimizer, one global batch."""

from __future__ import annotations

from typing import Any

import numpy as np

GLOBAL_BATCH = 64
LEARNING_RATE = 1e-3
CLASSES = 10
MODELS = {
    "cnn": "MNIST CNN (conv 32, pool, conv 64, pool, dense 64, dense 10)",
    "mlp": "MLP of 100k parameters (784-100-100-100-10)",
}
STEPS = {"cnn": 150, "mlp": 300}
"""Steps of a block, a second or two. `fit` trains two blocks in a call, and in calls of 200 steps
or more it runs several steps at a time."""
HIDDEN = (100, 100, 100)


def samples(model: str, steps: int) -> tuple[Any, Any]:
    """Images and labels for `steps` global batches."""
    random = np.random.default_rng(1)
    count = steps * GLOBAL_BATCH
    shape = (28, 28, 1) if model == "cnn" else (784,)
    x = random.random((count, *shape), dtype=np.float32)
    return x, random.integers(0, CLASSES, count).astype(np.int32)


def keras_model(keras: Any, model: str) -> Any:
    """The model in `keras`, which is Keras 3 or tf_keras, compiled."""
    layers = keras.layers
    if model == "cnn":
        hidden = [
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
        ]
        shape = (28, 28, 1)
    else:
        hidden = [layers.Dense(width, activation="relu") for width in HIDDEN]
        shape = (784,)
    built = keras.Sequential([keras.Input(shape), *hidden, layers.Dense(CLASSES)])
    built.compile(
        optimizer=keras.optimizers.Adam(LEARNING_RATE),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return built
