"""Workers at their own pace reach the loss that one device reaches, within a band."""

import numpy as np
import pytest
from server_cluster import led

from phalanx.testing import run_single

pytestmark = [pytest.mark.full, pytest.mark.timeout(1500)]

SEEDS = (1, 2, 3)
BAND = 1.5
"""Times the loss of one device, which after so many steps is far above 0."""


def losses(logs_gradients=False):
    """The last epoch's loss for each seed, and what always answering the mean would cost."""
    import keras

    import phalanx

    found = []
    for seed in SEEDS:
        keras.utils.set_random_seed(seed)
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(480, 8)).astype("float32")
        y = np.tanh(x[:, :4].sum(1, keepdims=True)) + 0.3 * rng.normal(size=(480, 1))
        model = keras.Sequential(
            [
                keras.Input((8,)),
                keras.layers.Dense(32, activation="tanh"),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse")
        before = phalanx.evaluate(model, x, y, verbose=0)
        loggers = [phalanx.callbacks.GradientLogger(every_n_steps=10)] if logs_gradients else []
        history = phalanx.fit(model, x, y, batch_size=16, epochs=6, verbose=0, callbacks=loggers)
        found.append((before, history.history))
    return found


@pytest.fixture(scope="module")
def asynchronous():
    return led(lambda: losses(logs_gradients=True), workers=2, servers=1)


@pytest.fixture(scope="module")
def reference():
    return run_single(losses, deadline=600)


@pytest.mark.parametrize("number", range(len(SEEDS)))
def test_the_loss_is_within_the_band(asynchronous, reference, number):
    before, history = asynchronous[number]
    _, expected = reference[number]
    loss, one_device = history["loss"][-1], expected["loss"][-1]
    assert one_device / BAND < loss < one_device * BAND
    assert loss < before / 2


def test_each_workers_gradient_is_logged(asynchronous):
    _, history = asynchronous[0]
    assert all(
        0 < n < m
        for n, m in zip(history["gradient_norm"], history["gradient_norm_max"], strict=True)
    )
