"""A custom training loop with `strategy.run` and a Keras optimizer that clips gradients.

    phalanx run --workers 2 examples/hand_loop.py

Plain Keras 3 clips the gradient of each replica before the all-reduce. Under Phalanx the gradients
are summed first, so any number of workers takes the same steps.
As always with `strategy.run`, a replica's loss is divided by the *global* batch size.
"""

import argparse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import phalanx

BATCH = 128


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--limit", type=int, default=20_000, help="train on LIMIT images")
    options = parser.parse_args()

    strategy = phalanx.strategy()
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((784,)),
                keras.layers.Dense(128, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        optimizer = keras.optimizers.Adam(1e-3, global_clipnorm=0.1)
        optimizer.build(model.trainable_variables)
    # Under `phalanx run` every Keras optimizer is right already; this makes it so anywhere.
    phalanx.distribute_optimizer(optimizer)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            losses = loss_of(y, model(x, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function
    def step(batch):
        per_replica = strategy.run(replica_step, args=batch)
        return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)

    data = strategy.experimental_distribute_dataset(dataset(options.limit))
    for epoch in range(options.epochs):
        losses = [float(step(batch)) for batch in data]
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}")


def dataset(limit):
    with np.load(Path(__file__).parent / "mnist.npz") as file:
        x, y = file["x_train"][:limit], file["y_train"][:limit]
    x = x.reshape(len(x), 784).astype("float32") / 255
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True)


if __name__ == "__main__":
    main()
