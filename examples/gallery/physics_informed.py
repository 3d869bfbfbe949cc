"""A physics-informed network: Burgers' equation by gradients of gradients.

The loss of the equation is taken where the data says; start and walls are the same at every step.
"""

import json

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(181)

VISCOSITY = 0.1


class PINN(keras.Model):
    def __init__(self, known_at, known):
        super().__init__()
        self.net = keras.Sequential(
            [keras.layers.Dense(16, activation="tanh") for _ in range(2)] + [keras.layers.Dense(1)]
        )
        self.known_at = tf.constant(known_at)
        self.known = tf.constant(known)
        self.residual_tracker = keras.metrics.Mean(name="residual")
        self.known_tracker = keras.metrics.Mean(name="known")

    def call(self, inputs):
        return self.net(inputs)

    def residual(self, points):
        t, x = points[:, 0:1], points[:, 1:2]
        with tf.GradientTape() as second:
            second.watch(x)
            with tf.GradientTape(persistent=True) as first:
                first.watch([t, x])
                u = self.net(tf.concat([t, x], axis=1))
            u_t, u_x = first.gradient(u, t), first.gradient(u, x)
        u_xx = second.gradient(u_x, x)
        return u_t + u * u_x - VISCOSITY * u_xx

    def train_step(self, points):
        with tf.GradientTape() as tape:
            equation = tf.reduce_mean(tf.square(self.residual(points)))
            known = tf.reduce_mean(tf.square(self(self.known_at) - self.known))
            loss = equation + known
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.residual_tracker.update_state(equation, sample_weight=tf.shape(points)[0])
        self.known_tracker.update_state(known)
        return {metric.name: metric.result() for metric in self.metrics}

    @property
    def metrics(self):
        return [self.residual_tracker, self.known_tracker]


rng = np.random.default_rng(182)
interior = rng.uniform([0, -1], [1, 1], (127, 2)).astype("float32")
start = np.stack([np.zeros(20), np.linspace(-1, 1, 20)], axis=1)
walls = np.stack([np.linspace(0, 1, 14), np.tile([-1, 1], 7)], axis=1)
known_at = np.concatenate([start, walls]).astype("float32")
known = np.concatenate([-np.sin(np.pi * start[:, 1:]), np.zeros((14, 1))]).astype("float32")

pinn = PINN(known_at, known)
pinn.compile(optimizer=keras.optimizers.Adam(0.005))
history = pinn.fit(
    tf.data.Dataset.from_tensor_slices(interior).batch(31), epochs=6, verbose=2
).history
result = {
    **history,
    "solution": float(np.mean(np.square(pinn.predict(interior, verbose=0)))),
    "residuals": float(tf.reduce_mean(tf.square(pinn.residual(tf.constant(interior))))),
}
print("RESULT", json.dumps(result))
