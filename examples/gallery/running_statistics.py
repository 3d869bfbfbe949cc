"""A layer with a moving average of its inputs, which it subtracts at inference."""

import json

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(261)


class RunningMean(layers.Layer):
    def __init__(self, momentum=0.9, **kwargs):
        super().__init__(**kwargs)
        self.momentum = momentum

    def build(self, input_shape):
        self.mean = self.add_weight(
            shape=(input_shape[-1],), initializer="zeros", trainable=False, name="mean"
        )

    def call(self, inputs, training=False):
        if training:
            batch_mean = ops.mean(inputs, axis=0)
            self.mean.assign(self.momentum * self.mean + (1 - self.momentum) * batch_mean)
            return inputs
        return inputs - 0.1 * self.mean


rng = np.random.default_rng(262)
x = rng.normal(0.5, 1, size=(72, 4)).astype("float32")
y = np.sum(np.tanh(x), axis=1, keepdims=True)

running_mean = RunningMean()
model = keras.Sequential([layers.Dense(14, activation="relu"), running_mean, layers.Dense(1)])
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
history = model.fit(x, y, batch_size=23, epochs=4, verbose=2).history
result = {
    **history,
    "mean": float(np.linalg.norm(running_mean.mean)),
    "predicted": float(np.mean(np.square(model.predict(x, verbose=0)))),
}
print("RESULT", json.dumps(result))
