"""Small models of which one step is run again, and what was kept of it."""

import keras
import numpy as np

from phalanx.checkpoint.step_capture import CapturedPart, CaptureInfo, StepCapture
from phalanx.checkpoint.variable_names import model_variables, paths_of
from phalanx.diagnostics.debug.replay import Replay

ROWS = 8


def rows(bad=None, value=0.0):
    x = np.linspace(1.0, 2.0, ROWS * 4, dtype=np.float32).reshape(ROWS, 4)
    if bad is not None:
        x[bad] = value
    return x


def captured_of(model, x, y=None, *, is_bad=True, count=ROWS, scale=1.0, why_not=""):
    y = np.ones((len(x), 1), np.float32) if y is None else y
    part = CapturedPart(replica=1, count=count, start=8, rows=tuple(range(100, 108)), is_bad=is_bad)
    return CaptureInfo(
        about=StepCapture(rank=1, step=3, replicas=1, total=16, variable="", policy="raise",
                           loss_scale=scale, parts=(part,), model=why_not),
        batches=((x, y),),
        weights={name: np.array(v.numpy()) for name, v in model_variables(model).items()},
        paths=paths_of(model_variables(model)),
        config=None,
    )  # fmt: skip


def replayed(layers, x, y=None, *, loss="mse", scale=1.0, weights=None):
    model = keras.Sequential([keras.Input((4,)), *layers], name="m")
    model.compile(keras.optimizers.SGD(), loss)
    if weights is not None:
        model.set_weights(weights)
    return Replay(model, captured_of(model, x, y, scale=scale)).run()


class Of(keras.layers.Layer):
    """A layer that applies a function."""

    def __init__(self, function, **options):
        super().__init__(**options)
        self.function = function

    def call(self, x):
        return self.function(x)


def head(**options):
    return keras.layers.Dense(1, name="head", kernel_initializer="ones", **options)
