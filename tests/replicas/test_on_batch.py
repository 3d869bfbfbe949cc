"""One global batch at a time, as one device would have it."""

import keras
import numpy as np
import pytest
from small_models import OwnStep, assert_close, features, small_model, targets, values

import phalanx
from phalanx.errors import ConfigurationError


@pytest.fixture
def enabled():
    phalanx.enable()
    yield
    phalanx.disable()


@pytest.mark.parametrize("rows", [1, 7])
def test_training_evaluating_and_predicting_batches(rows, mirrored3, enabled):
    batches = [(features(rows, seed=s), targets(rows, seed=s)) for s in range(3)]
    weights = np.linspace(0.5, 2.0, rows)

    def run(model):
        trained = [model.train_on_batch(x, y, sample_weight=weights) for x, y in batches]
        tested = [model.test_on_batch(x, y, return_dict=True) for x, y in batches]
        predicted = [model.predict_on_batch(x) for x, _ in batches]
        flat = [*trained, *(list(t.values()) for t in tested), *predicted]
        return [np.asarray(f, "float64") for f in flat], values(model.weights)

    phalanx.disable()
    expected, expected_weights = run(small_model())
    phalanx.enable()
    with mirrored3.scope():
        model = small_model()
    got, weights_of_replicas = run(model)
    assert_close(got, expected)
    assert_close(weights_of_replicas, expected_weights)


def test_class_weights_are_taken(mirrored2, enabled):
    y = np.array([0.0, 1.0, 1.0])[:, None]

    def run(model):
        return model.train_on_batch(features(3), y, class_weight={0: 0.5, 1: 3.0})

    phalanx.disable()
    expected = run(small_model())
    phalanx.enable()
    with mirrored2.scope():
        model = small_model()
    assert_close([np.array(run(model))], [np.array(expected)])


def test_class_weights_next_to_sample_weights_are_refused(enabled):
    with pytest.raises(ConfigurationError, match="both were given"):
        small_model().train_on_batch(
            features(3), targets(3), sample_weight=np.ones(3), class_weight={0: 1.0}
        )


def test_metrics_start_afresh_with_every_batch(mirrored2, enabled):
    with mirrored2.scope():
        model = small_model(keras.optimizers.SGD(0.0))
    first = model.train_on_batch(features(4), targets(4))
    model.train_on_batch(features(4, seed=9), targets(4, seed=9))
    assert_close([np.array(model.train_on_batch(features(4), targets(4)))], [np.array(first)])


class Difference(keras.Model):
    """Of two inputs in a tuple."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, inputs):
        first, second = inputs
        return self.dense(first - second)


def of_two_inputs():
    first, second = keras.Input((4,)), keras.Input((4,))
    return keras.Model([first, second], keras.layers.Subtract()([first, second]))


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("replicas", [1, 2])
def test_several_inputs_are_predicted(kind, replicas, mirrored1, mirrored2, enabled):
    make = of_two_inputs if kind is list else Difference
    inputs = kind([features(3), features(3, seed=1)])
    phalanx.disable()
    expected = make().predict_on_batch(inputs)
    phalanx.enable()
    with (mirrored1 if replicas == 1 else mirrored2).scope():
        model = make()
    assert_close([model.predict_on_batch(inputs)], [expected])


def test_without_a_strategy_several_inputs_are_predicted(enabled):
    inputs = [features(3), features(3, seed=1)]
    assert_close([of_two_inputs().predict_on_batch(inputs)], [inputs[0] - inputs[1]])


class Triple(OwnStep):
    """A step that takes what Keras gives it on a batch: x, y and the weights, None for none."""

    def train_step(self, data):
        x, y, weights = data
        assert weights is None
        return super().train_step((x, y))

    def test_step(self, data):
        x, y, weights = data
        assert weights is None
        return super().test_step((x, y))


def test_a_step_gets_the_weights_that_there_are_not(mirrored2, enabled):
    def run():
        model = Triple([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile("sgd", "mse")
        given = features(3), targets(3)
        trained = model.train_on_batch(*given, return_dict=True)
        tested = model.test_on_batch(*given, return_dict=True)
        return [np.array(v) for v in (*trained.values(), *tested.values())]

    phalanx.disable()
    expected = run()
    phalanx.enable()
    with mirrored2.scope():
        assert_close(run(), expected)
