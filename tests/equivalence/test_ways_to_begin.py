"""However a script comes by its strategy, and however few replicas it has, the answer is one's.

A strategy of one replica owns its variables as one of many does, so each way runs with one too.
"""

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from equivalence_case import distance, features

import phalanx

ROWS, BATCH = 25, 8  # an odd row, and an odd batch at the end


def made(optimizer="adam"):
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def trained(model, fit=phalanx.fit):
    fit(model, **data(), batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    return model


def data():
    x = features(ROWS)
    return {"x": x, "y": x.sum(axis=1, keepdims=True)}


def in_scope(strategy):
    with strategy.scope():
        return trained(made())


def made_in_scope_fitted_outside(strategy):
    with strategy.scope():
        model = made()
    return trained(model)


def made_outside_fitted_in_scope(strategy):
    model = made()
    with strategy.scope():
        return trained(model)


def optimizer_from_outside(strategy):
    with strategy.scope():
        model = made("sgd")
    model.compile("adam", "mse", metrics=["mae"])
    return trained(model)


def enabled_before(strategy):
    with enabled(), strategy.scope():
        return trained(made(), keras.Model.fit)


def enabled_in_scope(strategy):
    with strategy.scope(), enabled():
        return trained(made(), keras.Model.fit)


def enabled_fitted_outside(strategy):
    with enabled():
        with strategy.scope():
            model = made()
        return trained(model, keras.Model.fit)


WAYS = {
    way.__name__: way
    for way in (
        in_scope,
        made_in_scope_fitted_outside,
        made_outside_fitted_in_scope,
        optimizer_from_outside,
        enabled_before,
        enabled_in_scope,
        enabled_fitted_outside,
    )
}


@contextlib.contextmanager
def enabled():
    phalanx.enable()
    try:
        yield
    finally:
        phalanx.disable()


EVALUATED = ("in_scope", "made_in_scope_fitted_outside")
"""The ways after which `evaluate` and `predict` run too, outside of the scope."""


def outcome(way, strategy):
    keras.utils.set_random_seed(11)
    model = WAYS[way](strategy)
    return other_than_weights(model, phalanx) if way in EVALUATED else model.get_weights()


def other_than_weights(model, methods):
    x = features(9, seed=5)
    y = x.sum(axis=1, keepdims=True)
    evaluation = methods.evaluate(model, x, y, batch_size=4, verbose=0)
    predictions = methods.predict(model, x, batch_size=4, verbose=0)
    return [*model.get_weights(), np.array(evaluation), predictions]


@functools.cache
def one_device():
    keras.utils.set_random_seed(11)
    model = trained(made(), keras.Model.fit)
    return other_than_weights(model, keras.Model)


def assert_one_devices(got):
    assert len(got) in (4, 6)
    for ours, theirs in zip(got, one_device(), strict=False):
        assert distance(ours, theirs) <= 1e-5


@pytest.mark.parametrize(
    ("way", "replicas"),
    [
        pytest.param(way, replicas, marks=() if replicas == 1 or chosen else pytest.mark.full)
        for replicas in (1, 2, 3)
        for way in WAYS
        for chosen in [replicas == 2 and way in ("in_scope", "made_outside_fitted_in_scope")]
    ],
)
def test_mirrored(way, replicas, request):
    assert_one_devices(outcome(way, request.getfixturevalue(f"mirrored{replicas}")))


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, marks=() if way in ("in_scope", "enabled_before") else pytest.mark.full)
        for way in WAYS
    ],
)
def test_one_device_strategy(way):
    assert_one_devices(outcome(way, tf.distribute.OneDeviceStrategy("CPU:0")))


@pytest.mark.full
def test_made_in_one_replica_fitted_in_several(mirrored2):
    keras.utils.set_random_seed(11)
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = made()
    with mirrored2.scope():
        trained(model)
    assert_one_devices(model.get_weights())


def all_ways():
    strategy = phalanx.strategy()
    assert isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return {way: outcome(way, strategy) for way in WAYS}


@pytest.mark.parametrize(
    "workers", [pytest.param(1, marks=pytest.mark.full), 2, pytest.param(3, marks=pytest.mark.full)]
)
def test_multi_worker(workers, pool):
    for outcomes in pool(workers).run(all_ways, deadline=300):
        for got in outcomes.values():
            assert_one_devices(got)
