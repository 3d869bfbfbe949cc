"""The basics without Keras: a `tf.Module` of `tf.Variable`s, a loss, a tape and `assign_sub`."""

import json

import numpy as np
import tensorflow as tf

tf.random.set_seed(221)

rng = np.random.default_rng(222)
x = np.linspace(-2, 2, 101).astype("float32")
y = (3.0 * x + 2.0 + rng.normal(size=101)).astype("float32")


class MyModel(tf.Module):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.w = tf.Variable(5.0)
        self.b = tf.Variable(0.0)

    @tf.function
    def __call__(self, x):
        return self.w * x + self.b


def loss(target_y, predicted_y):
    return tf.reduce_mean(tf.square(target_y - predicted_y))


def train(model, x, y, learning_rate):
    with tf.GradientTape() as t:
        current_loss = loss(y, model(x))
    dw, db = t.gradient(current_loss, [model.w, model.b])
    model.w.assign_sub(learning_rate * dw)
    model.b.assign_sub(learning_rate * db)


model = MyModel()
weights, biases, losses = [], [], []
for _epoch in range(6):
    for batch_x, batch_y in tf.data.Dataset.from_tensor_slices((x, y)).batch(33):
        train(model, batch_x, batch_y, learning_rate=0.1)
    weights.append(float(model.w))
    biases.append(float(model.b))
    losses.append(float(loss(y, model(x))))

tf.saved_model.save(model, "linear_model")
again = tf.saved_model.load("linear_model")
result = {"w": weights, "b": biases, "losses": losses, "again": [float(again.w), float(again.b)]}
print("RESULT", json.dumps(result))
