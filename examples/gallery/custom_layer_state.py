"""A layer with state: it counts steps, and adds more of its branch at each step."""

import json

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(151)


class FadeIn(layers.Layer):
    """Lets its branch in little by little over the first steps."""

    def __init__(self, steps, **kwargs):
        super().__init__(**kwargs)
        self.steps = steps

    def build(self, input_shape):
        self.seen = self.add_weight(
            shape=(), initializer="zeros", dtype="int32", trainable=False, name="seen"
        )
        self.gain = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="gain")

    def call(self, inputs, training=False):
        if training:
            self.seen.assign_add(1)
        share = ops.minimum(ops.cast(self.seen, "float32") / self.steps, 1.0)
        return inputs * self.gain * share


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(14, activation="relu")
        self.branch = layers.Dense(14, activation="tanh")
        self.fade_in = FadeIn(steps=9)
        self.out = layers.Dense(1)

    def call(self, inputs, training=False):
        x = self.hidden(inputs)
        x = x + self.fade_in(self.branch(inputs), training=training)
        return self.out(x)


rng = np.random.default_rng(152)
x = rng.normal(0.5, 1, size=(97, 4)).astype("float32")
y = np.prod(np.tanh(x), axis=1, keepdims=True)

model = Net()
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
history = model.fit(x, y, batch_size=23, epochs=4, validation_split=0.25, verbose=2).history
result = {
    **history,
    "seen": int(model.fade_in.seen),
    "predicted": float(np.mean(np.square(model.predict(x, verbose=0)))),
}
print("RESULT", json.dumps(result))
