"""Where a step mixes the rows of its inputs, each replica computes the layers for its own rows."""

import keras
import numpy as np
import pytest

import phalanx
from phalanx.gradients import global_values

L = keras.layers


class Mixes(L.Layer):
    """Mixes each row with the one opposite."""

    def call(self, x, training=False):
        return 0.7 * x + 0.3 * x[::-1] if training else x


MODELS = {
    "inputs": lambda: [Mixes(), L.Dense(4, activation="tanh"), L.Dense(2)],
    "inputs, behind a layer without weights": lambda: [L.Rescaling(2.0), Mixes(), L.Dense(2)],
    "features": lambda: [L.Dense(4, activation="tanh"), Mixes(), L.Dense(2)],
}


def trained(fit, layers):
    keras.utils.set_random_seed(4)
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(21, width)).astype("float32") for width in (6, 2))
    model = keras.Sequential(layers())
    model.compile(keras.optimizers.SGD(0.1), "mse")
    fit(model, x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize("kind", MODELS)
def test_layers_are_computed_again_behind_mixed_features_only(kind, mirrored2, monkeypatch):
    warned = []
    monkeypatch.setattr(global_values, "_warn_of_repeated_layers", lambda: warned.append(kind))
    with mirrored2.scope():
        found = trained(phalanx.fit, MODELS[kind])
    assert bool(warned) == (kind == "features")
    for one, other in zip(trained(keras.Model.fit, MODELS[kind]), found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
