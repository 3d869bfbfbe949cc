"""A custom loss class, loss function and metric classes, with sample weights."""

import json

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(141)


class CustomMSE(keras.losses.Loss):
    """Mean squared error that pulls predictions towards 0.5."""

    def __init__(self, regularization_factor=0.1, name="custom_mse"):
        super().__init__(name=name)
        self.regularization_factor = regularization_factor

    def call(self, y_true, y_pred):
        mse = ops.mean(ops.square(y_true - y_pred), axis=-1)
        reg = ops.mean(ops.square(0.5 - y_pred), axis=-1)
        return mse + reg * self.regularization_factor


def pinball(y_true, y_pred):
    error = y_true - y_pred
    return ops.mean(ops.maximum(0.9 * error, -0.1 * error), axis=-1)


class CategoricalTruePositives(keras.metrics.Metric):
    def __init__(self, name="true_positives", **kwargs):
        super().__init__(name=name, **kwargs)
        self.true_positives = self.add_variable(shape=(), initializer="zeros", name="ctp")

    def update_state(self, y_true, y_pred, sample_weight=None):
        hits = ops.cast(ops.equal(y_true > 0.5, y_pred > 0.5), "float32")
        if sample_weight is not None:
            hits = hits * ops.reshape(ops.cast(sample_weight, "float32"), (-1, 1))
        self.true_positives.assign_add(ops.sum(hits))

    def result(self):
        return self.true_positives

    def reset_state(self):
        self.true_positives.assign(0.0)


class ExplainedVariance(keras.metrics.Metric):
    def __init__(self, name="explained_variance", **kwargs):
        super().__init__(name=name, **kwargs)
        names = ("count", "total", "squares", "residuals")
        self.sums = [self.add_weight(name=each, initializer="zeros") for each in names]

    def update_state(self, y_true, y_pred, sample_weight=None):
        ones = ops.ones_like(y_true)
        for kept, new in zip(
            self.sums, (ones, y_true, y_true**2, (y_true - y_pred) ** 2), strict=True
        ):
            kept.assign_add(ops.sum(new))

    def result(self):
        count, total, squares, residuals = self.sums
        return 1 - residuals / (squares - total**2 / count)


rng = np.random.default_rng(142)
x = rng.normal(size=(139, 5)).astype("float32")
y = 1 / (1 + np.exp(-x @ rng.normal(size=(5, 2)))) + rng.normal(0, 0.05, (139, 2))
y = y.astype("float32")
weights = rng.uniform(0.2, 2, 139).astype("float32")

inputs = keras.Input((5,))
hidden = layers.Dense(12, activation="gelu")(inputs)
model = keras.Model(
    inputs,
    {
        "middle": layers.Dense(2, name="middle")(hidden),
        "upper": layers.Dense(2, name="upper")(hidden),
    },
)
model.compile(
    optimizer=keras.optimizers.Nadam(0.01),
    loss={"middle": CustomMSE(), "upper": pinball},
    loss_weights={"middle": 1.0, "upper": 0.5},
    metrics={"middle": [ExplainedVariance(), "mae"], "upper": ["mse"]},
    weighted_metrics={"middle": [CategoricalTruePositives()], "upper": []},
)
targets = {"middle": y, "upper": y}
history = model.fit(
    x,
    targets,
    sample_weight={"middle": weights, "upper": weights[::-1]},
    batch_size=29,
    epochs=4,
    verbose=2,
).history
result = {**history, "evaluated": model.evaluate(x, targets, batch_size=50, verbose=0)}
print("RESULT", json.dumps(result))
