"""`enable()` and `disable()`: Keras is afterwards what it was before."""

import importlib

import keras
import pytest
import tensorflow as tf
from small_models import assert_close, features, small_model, targets, values

import phalanx
from phalanx.keras_compat.loss_patches import backend_nn

OWNERS = {
    owner
    for kind in (
        keras.Model,
        keras.Sequential,
        keras.optimizers.Adam,
        keras.optimizers.LossScaleOptimizer,
        keras.metrics.Mean,
        keras.Variable,
        tf.random.Generator,
        keras.layers.Dense,
    )
    for owner in kind.__mro__
    if owner is not object
}
MODULES = {
    importlib.import_module(name)
    for name in (
        "keras.src.losses.loss",
        "tensorflow.python.ops.gen_random_ops",
        "tensorflow.python.ops.gen_stateless_random_ops_v2",
    )
} | {tf.random, backend_nn()}


def everything():
    """Every attribute of every class and module that is replaced, by identity."""
    return {
        (owner, name): id(value)
        for owner in OWNERS | MODULES
        for name, value in vars(owner).items()
        if not name.startswith("__")  # Python makes some of those when they are first read.
    }


@pytest.fixture(autouse=True)
def _off_afterwards():
    yield
    phalanx.disable()


def changed(before):
    after = everything()
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def test_disable_leaves_every_attribute_as_it_was():
    before = everything()
    phalanx.enable()
    assert {name for _, name in changed(before)} >= {"fit", "evaluate", "predict", "apply"}
    phalanx.disable()
    assert changed(before) == set()


def test_a_call_of_ours_leaves_every_attribute_as_it_was(mirrored2):
    before = everything()
    with mirrored2.scope():
        model = small_model()
    phalanx.fit(model, features(8), targets(8), verbose=0)
    phalanx.evaluate(model, features(8), targets(8), verbose=0)
    phalanx.predict(model, features(8), verbose=0)
    assert changed(before) == set()


def test_a_call_that_fails_leaves_every_attribute_as_it_was(mirrored2):
    before = everything()

    def fail(batch, logs=None):
        raise KeyError("mine")

    with mirrored2.scope():
        model = small_model()
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=fail)
    with pytest.raises(KeyError, match="mine"):
        phalanx.fit(model, features(8), targets(8), verbose=0, callbacks=[callback])
    assert changed(before) == set()


def test_both_may_be_called_again():
    before = everything()
    phalanx.disable()
    assert not phalanx.is_enabled()
    phalanx.enable()
    phalanx.enable()
    assert phalanx.is_enabled()
    phalanx.disable()
    assert changed(before) == set()
    phalanx.disable()
    assert not phalanx.is_enabled()


def test_the_methods_of_models_are_ours_meanwhile():
    phalanx.enable()
    assert keras.Model.fit is phalanx.fit
    assert keras.Sequential.evaluate is phalanx.evaluate
    phalanx.disable()
    assert keras.Model.fit is not phalanx.fit


def test_a_call_of_ours_inside_keeps_the_switch_on():
    phalanx.enable()
    phalanx.fit(small_model(), features(8), targets(8), verbose=0)
    assert phalanx.is_enabled()
    assert keras.Model.fit is phalanx.fit


def test_fit_of_keras_works_as_before_after_ours(mirrored2):
    def train(model):
        model.fit(features(8), targets(8), batch_size=4, epochs=2, shuffle=False, verbose=0)
        return values(model.weights)

    expected = train(small_model())
    with mirrored2.scope():
        before = train(small_model())
    phalanx.enable()
    with mirrored2.scope():
        model = small_model()
        ours = train(model)
    phalanx.disable()
    with mirrored2.scope():
        after = train(small_model())
    assert_close(after, before, tolerance=0)
    assert_close(ours, expected)


def test_a_model_that_we_trained_continues_with_keras():
    expected = small_model()
    expected.fit(features(8), targets(8), epochs=2, shuffle=False, verbose=0)
    model = small_model()
    phalanx.fit(model, features(8), targets(8), shuffle=False, verbose=0)
    model.fit(features(8), targets(8), shuffle=False, verbose=0)
    assert_close(values(model.weights), values(expected.weights), tolerance=1e-6)


@pytest.mark.full
def test_a_model_that_we_trained_on_replicas_continues_with_keras(mirrored2):
    with mirrored2.scope():
        model = small_model()
        phalanx.fit(model, features(8), targets(8), shuffle=False, verbose=0)
        model.fit(features(8), targets(8), shuffle=False, verbose=0)
        (loss, _) = model.evaluate(features(8), targets(8), verbose=0)
    assert loss > 0


def test_the_default_strategy_is_back_afterwards(mirrored2):
    with mirrored2.scope():
        model = small_model()
    phalanx.fit(model, features(8), targets(8), verbose=0)
    assert not tf.distribute.has_strategy()
