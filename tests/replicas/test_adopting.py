"""Models and optimizers that were made, or trained, before the strategy's scope."""

import keras
import numpy as np
import pytest
from small_models import (
    assert_close,
    features,
    needs_multi_optimizer,
    small_model,
    targets,
    values,
)

import phalanx

OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), initial_scale=64.0
    ),
    "several": lambda: keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(
            keras.optimizers.SGD(0.1, momentum=0.9), {".*/bias": keras.optimizers.Adam(0.01)}
        )
    ),
}
OPTIONS = {"batch_size": 8, "shuffle": False, "verbose": 0}


@pytest.mark.parametrize(
    "name",
    [
        "adam",
        pytest.param("several", marks=[needs_multi_optimizer, pytest.mark.full]),
        pytest.param("loss_scale", marks=pytest.mark.full),
    ],
)
def test_a_trained_model_keeps_its_values_and_continues_as_on_one_device(name, mirrored2):
    x, y = features(19), targets(19)
    expected, model = small_model(OPTIMIZERS[name]()), small_model(OPTIMIZERS[name]())
    expected.fit(x, y, epochs=2, **OPTIONS)
    model.fit(x, y, epochs=2, **OPTIONS)
    kept = values([*model.weights, *model.optimizer.variables])
    with mirrored2.scope():
        phalanx.evaluate(model, x, y, verbose=0)
    assert_close(values([*model.weights, *model.optimizer.variables]), kept, tolerance=0)
    with mirrored2.scope():
        history = phalanx.fit(model, x, y, epochs=2, **OPTIONS).history
    expected_history = expected.fit(x, y, epochs=2, **OPTIONS).history
    assert_close(values(model.weights), values(expected.weights))
    assert_close(values(model.optimizer.variables), values(expected.optimizer.variables))
    for key, column in expected_history.items():
        assert history[key] == pytest.approx(column, rel=1e-5)


def test_the_keras_variables_stay_the_same_objects(mirrored2):
    model = small_model()
    before = [id(v) for v in model.variables]
    with mirrored2.scope():
        phalanx.fit(model, features(8), targets(8), **OPTIONS)
    assert [id(v) for v in model.variables] == before
    assert len(mirrored2.experimental_local_results(model.variables[0].value)) == 2


@pytest.mark.full
def test_an_optimizer_from_outside_trains_a_model_from_inside(mirrored2):
    expected = small_model(keras.optimizers.Adam(0.01))
    expected.fit(features(19), targets(19), **OPTIONS)
    optimizer = keras.optimizers.Adam(0.01)
    with mirrored2.scope():
        model = small_model(optimizer)
    phalanx.fit(model, features(19), targets(19), **OPTIONS)
    assert_close(values(model.weights), values(expected.weights))
    assert_close(values(optimizer.variables), values(expected.optimizer.variables))


# Keras's own, under NumPy 2, wherever it saves variables of a strategy.
SAVING = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy")


@SAVING
def test_weights_loaded_afterwards_reach_every_replica(mirrored2, tmp_path):
    with mirrored2.scope():
        model = small_model()
    phalanx.fit(model, features(8), targets(8), **OPTIONS)
    path = str(tmp_path / "model.weights.h5")
    model.save_weights(path)
    saved = values(model.weights)
    phalanx.fit(model, features(8), targets(8), **OPTIONS)
    model.load_weights(path)
    for variable, value in zip(model.weights, saved, strict=True):
        for copy in mirrored2.experimental_local_results(variable.value):
            assert (copy.numpy() == value).all()


@SAVING
def test_a_model_saved_after_training_on_replicas_is_a_plain_one(mirrored2, tmp_path):
    with mirrored2.scope():
        model = small_model()
    phalanx.fit(model, features(8), targets(8), **OPTIONS)
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.saving.load_model(path)
    assert_close(values(loaded.weights), values(model.weights), tolerance=0)
    predicted = loaded.predict(features(3), verbose=0)
    assert_close([np.asarray(predicted)], [phalanx.predict(model, features(3), verbose=0)])
