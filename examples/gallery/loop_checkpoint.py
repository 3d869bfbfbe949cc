"""A `tf.function` loop whose model, optimizer and place `tf.train.Checkpoint` keeps.

The training stops half way, and resumes from the latest checkpoint with everything made again.
"""

import json

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(71)

rng = np.random.default_rng(72)
x = rng.uniform(-1, 1, size=(87, 3)).astype("float32")
y = (np.sin(2 * x).sum(axis=1, keepdims=True)).astype("float32")


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(24, activation="tanh")
        self.out = keras.layers.Dense(1)

    def call(self, inputs):
        return self.out(self.hidden(inputs))


def make_training():
    net = Net()
    optimizer = keras.optimizers.RMSprop(0.005)
    step = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(step=step, optimizer=optimizer, net=net)
    manager = tf.train.CheckpointManager(checkpoint, "./tf_ckpts", max_to_keep=3)

    @tf.function
    def train_step(features, targets):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(net(features) - targets))
        variables = net.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return net, step, checkpoint, manager, train_step


def train(until):
    net, step, checkpoint, manager, train_step = make_training()
    checkpoint.restore(manager.latest_checkpoint)
    began = int(step)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(15)
    losses = []
    for features, targets in dataset.skip(began).take(until - began):
        losses.append(float(train_step(features, targets)))
        step.assign_add(1)
        if int(step) % 5 == 0:
            path = manager.save()
            print(f"Saved checkpoint for step {int(step)}: {path}")
    return net, began, losses, manager


_, first_began, first_losses, _ = train(until=12)
net, then_began, then_losses, manager = train(until=23)
result = {
    "began": [first_began, then_began],
    "losses": first_losses + then_losses,
    "checkpoints": [int(path.rsplit("-", 1)[1]) for path in manager.checkpoints],
    "predicted": float(tf.reduce_mean(tf.square(net(x)))),
}
print("RESULT", json.dumps(result))
