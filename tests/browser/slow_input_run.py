"""Plain Keras for three workers of `phalanx run`; worker 1 takes long to read its data."""

import json
import os
import time

import keras
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
x = rng.normal(size=(1200, 64)).astype("float32")
y = rng.integers(0, 10, 1200)
is_slow = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1


def read(row):
    time.sleep(0.002 if is_slow else 0.0)
    return row


def read_row(row, label):
    return tf.ensure_shape(tf.numpy_function(read, [row], tf.float32), (64,)), label


data = tf.data.Dataset.from_tensor_slices((x, y)).map(read_row).batch(60)
model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(512, activation="relu"),
        keras.layers.Dense(10),
    ]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(data, epochs=3, verbose=0)
