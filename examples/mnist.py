"""Train a small CNN on MNIST: plain Keras, with no word about distribution.

python examples/mnist.py                          on one device
phalanx run --workers 2 examples/mnist.py         on two workers, with the same answer
"""

import argparse
from pathlib import Path

import keras
import numpy as np

DATA = Path(__file__).parent / "mnist.npz"


def load(limit=None):
    """Images of shape (28, 28, 1) from 0 to 1, with their labels; the first `limit` only."""
    with np.load(DATA) as file:
        x_train, y_train = file["x_train"][:limit], file["y_train"][:limit]
        x_test, y_test = file["x_test"][:limit], file["y_test"][:limit]
    return (scaled(x_train), y_train), (scaled(x_test), y_test)


def scaled(images):
    return (images.astype("float32") / 255)[..., np.newaxis]


def build_model():
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of a global batch")
    parser.add_argument("--limit", type=int, help="train and test on the first LIMIT images only")
    options = parser.parse_args()

    (x_train, y_train), (x_test, y_test) = load(options.limit)
    held_out = len(x_train) // 12  # 5,000 of the 60,000 are for validation.
    model = build_model()
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        x_train[held_out:],
        y_train[held_out:],
        batch_size=options.batch_size,
        epochs=options.epochs,
        validation_data=(x_train[:held_out], y_train[:held_out]),
    )
    _, accuracy = model.evaluate(x_test, y_test, batch_size=500, verbose=0)
    print(f"test accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    main()
