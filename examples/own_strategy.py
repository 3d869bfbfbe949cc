"""A script that makes its own strategy, as TensorFlow's multi-worker tutorial teaches.

    phalanx run --workers 2 examples/own_strategy.py

Under `phalanx run` the strategy that it makes is the launcher's; nothing else changes.
"""

import argparse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

PER_WORKER_BATCH = 64


def dataset(limit, batch_size):
    with np.load(Path(__file__).parent / "mnist.npz") as file:
        x, y = file["x_train"][:limit], file["y_train"][:limit]
    x = (x.astype("float32") / 255)[..., np.newaxis]
    whole = tf.data.Dataset.from_tensor_slices((x, y.astype("int64")))
    return whole.shuffle(len(x)).repeat().batch(batch_size)


def build_and_compile():
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.SGD(learning_rate=0.1),
        metrics=["accuracy"],
    )
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=70, help="steps of an epoch")
    parser.add_argument("--limit", type=int, default=20_000, help="train on LIMIT images")
    options = parser.parse_args()

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    batch_size = PER_WORKER_BATCH * strategy.num_replicas_in_sync
    with strategy.scope():
        model = build_and_compile()
    data = dataset(options.limit, batch_size)
    history = model.fit(data, epochs=options.epochs, steps_per_epoch=options.steps)
    role = f"{strategy.cluster_resolver.task_type} {strategy.cluster_resolver.task_id}"
    print(f"{role}: accuracy {history.history['accuracy'][-1]:.4f} in the last epoch")


if __name__ == "__main__":
    main()
