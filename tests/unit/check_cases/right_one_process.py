"""Right: MirroredStrategy in a function, the scope in a name, both branches fit."""

import contextlib

import keras
import tensorflow as tf

rank = 4  # of a matrix
data = tf.data.Dataset.range(10)


keras.backend.clear_session()


def build():
    inputs = keras.Input((8,))
    model = keras.Model(inputs, keras.layers.Dense(rank)(inputs))
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    return model


def main(replicas, is_chief, verbose):
    scope = contextlib.nullcontext()
    if replicas > 1:
        scope = tf.distribute.MirroredStrategy().scope()
    with scope:
        model = build()
    if rank == 4:
        model.fit(data)
    if is_chief:
        model.fit(data, verbose=verbose)
    else:
        model.fit(data, verbose=0)
    with open("result.txt", "w") as file:
        file.write(str(model.optimizer.iterations))
    for weight in model.trainable_variables:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight)
        print(tape.gradient(loss, weight))
