"""Learning rates: a schedule class with warmup and cosine decay, and ReduceLROnPlateau."""

import json
import math

import keras
import numpy as np
from keras import ops

keras.utils.set_random_seed(171)


class WarmUpCosine(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, learning_rate_base, total_steps, warmup_steps):
        super().__init__()
        self.learning_rate_base = learning_rate_base
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps

    def __call__(self, step):
        step = ops.cast(step, "float32")
        progress = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        cosine = 0.5 * self.learning_rate_base * (1 + ops.cos(math.pi * progress))
        warmup = self.learning_rate_base * step / self.warmup_steps
        return ops.where(step < self.warmup_steps, warmup, cosine)

    def get_config(self):
        return {
            "learning_rate_base": self.learning_rate_base,
            "total_steps": self.total_steps,
            "warmup_steps": self.warmup_steps,
        }


def make_model():
    return keras.Sequential(
        [keras.Input((7,)), keras.layers.Dense(20, activation="silu"), keras.layers.Dense(3)]
    )


rng = np.random.default_rng(172)
count, batch_size, epochs = 171, 35, 5
x = rng.normal(size=(count, 7)).astype("float32")
y = np.argmax(x[:, :3] + x[:, 3:6], axis=1)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
total_steps = math.ceil(count / batch_size) * epochs

scheduled = make_model()
schedule = WarmUpCosine(0.01, total_steps, warmup_steps=6)
scheduled.compile(
    keras.optimizers.AdamW(schedule, weight_decay=0.01, global_clipnorm=1.0),
    loss,
    metrics=["accuracy"],
)
first = scheduled.fit(x, y, batch_size=batch_size, epochs=epochs, verbose=2).history

lowered = make_model()
lowered.compile(keras.optimizers.SGD(3.0), loss)
second = lowered.fit(
    x,
    y,
    batch_size=batch_size,
    epochs=5,
    verbose=2,
    callbacks=[
        keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.3, patience=1, min_delta=0.5),
        keras.callbacks.TerminateOnNaN(),
    ],
).history
result = {"scheduled": first, "lowered": second, "steps": int(scheduled.optimizer.iterations)}
print("RESULT", json.dumps(result))
