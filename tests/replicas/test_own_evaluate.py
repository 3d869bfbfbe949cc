"""`fit` validates by the `evaluate` that a model overrides, as Keras's does."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import features, targets

import phalanx


class Raw(keras.Sequential):
    """Takes rows as bytes, and makes numbers of them, as KerasHub's models do of text."""

    def numbers(self, x, y):
        return tf.reshape(tf.io.decode_raw(x, tf.float32), (-1, 4)), y

    def evaluate(self, x=None, y=None, sample_weight=None, **options):
        options.pop("_use_cached_eval_dataset", None)
        options.pop("batch_size", None)
        assert y is None
        assert sample_weight is None
        return super().evaluate(x.map(self.numbers), **options)


class Adds(keras.Sequential):
    """Adds to what Keras's own gives."""

    def evaluate(self, *args, **options):
        logs = super().evaluate(*args, **options)
        return {**logs, "twice": 2 * logs["loss"]} if isinstance(logs, dict) else logs


class Hooks(keras.callbacks.Callback):
    """Which hooks ran, and what the metrics said in them."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_test_begin(self, logs=None):
        self.seen.append("begin")

    def on_test_batch_end(self, batch, logs=None):
        self.seen.append(batch)

    def on_test_end(self, logs=None):
        self.seen.append(sorted(logs))


def model_of(kind):
    keras.utils.set_random_seed(3)
    made = kind([keras.Input((4,)), keras.layers.Dense(1)])
    made.compile(keras.optimizers.SGD(0.1), "mse")
    return made


def held_out(kind):
    x, y = features(7, seed=1), targets(7, seed=1)
    if kind is Adds:
        return x, y
    rows = np.array([row.tobytes() for row in x], object)
    return tf.data.Dataset.from_tensor_slices((rows, y)).batch(4)


def fitted(fit, kind, *, model=None, **options):
    hooks = Hooks()
    history = fit(
        model or model_of(kind), features(19), targets(19), batch_size=4, epochs=3, shuffle=False,
        verbose=0, validation_data=held_out(kind), callbacks=[hooks], **options,
    ).history  # fmt: skip
    return history, hooks.seen


@pytest.mark.parametrize("kind", [Raw, Adds])
@pytest.mark.parametrize("is_enabled", [False, True])
def test_validation_is_that_of_one_device(kind, is_enabled, mirrored2):
    expected, expected_hooks = fitted(keras.Model.fit, kind)
    with mirrored2.scope():
        model = model_of(kind)
    if is_enabled:
        phalanx.enable()
    try:
        history, hooks = fitted(phalanx.fit, kind, model=model)
    finally:
        phalanx.disable()
    assert hooks == expected_hooks
    assert history.keys() == expected.keys()
    assert ("val_twice" in history) == (kind is Adds)
    for name, values in expected.items():
        assert history[name] == pytest.approx(values, rel=1e-5)


def test_the_data_of_fit_is_opened_once(mirrored2):
    opened = []

    def batches():
        opened.append(1)
        for _ in range(4):
            yield features(2), targets(2)

    spec = (tf.TensorSpec([2, 4]), tf.TensorSpec([2, 1]))
    with mirrored2.scope():
        model = model_of(Adds)
    counts = []

    class Count(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            counts.append(len(opened))

    phalanx.fit(
        model, features(8), targets(8), epochs=3, verbose=0, callbacks=[Count()],
        validation_data=tf.data.Dataset.from_generator(batches, output_signature=spec),
    )  # fmt: skip
    assert counts == [1, 2, 3]


def test_an_evaluation_of_ones_own_is_as_before(mirrored2):
    expected = keras.Model.evaluate(
        model_of(Adds), features(7), targets(7), verbose=0, return_dict=True
    )
    with mirrored2.scope():
        model = model_of(Adds)
    phalanx.enable()
    try:
        got = model.evaluate(features(7), targets(7), verbose=0, return_dict=True)
    finally:
        phalanx.disable()
    assert got["twice"] == pytest.approx(2 * expected["loss"], rel=1e-5)
