"""What a `train_step` of the user's assigns and returns is one device's on replicas too."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import assert_close, features, targets, values

import phalanx
from phalanx.gradients.step_context import current_replica_batch

ROWS = 17
"""The last of three batches has one row, so one of two replicas has none."""


class Stepping(keras.Model):
    """A custom step of two dense layers, whose subclasses do more in it."""

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(5)
        self.network = self.make()
        self.count = keras.Variable(0, dtype="int32", trainable=False)

    def make(self):
        layers = [keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((4,)), *layers])

    def call(self, x, training=None):
        return self.network(x, training=training)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        self.update(tape.gradient(loss, self.network.trainable_variables))
        return self.logs(x, y, loss)

    def update(self, gradients):
        self.optimizer.apply(gradients, self.network.trainable_variables)

    def logs(self, x, y, loss):
        return {"own": loss}


class Clipped(Stepping):
    """A WGAN's critic: the step clips the weights."""

    def update(self, gradients):
        super().update(gradients)
        for weight in self.network.trainable_variables:
            weight.assign(tf.clip_by_value(weight, -0.3, 0.3))


class Taught(Stepping):
    """A mean teacher, the average of the weights of all steps; and the weights of some steps."""

    def __init__(self):
        super().__init__()
        self.teacher, self.older = self.make(), self.make()
        self.teacher.trainable = self.older.trainable = False

    def update(self, gradients):
        super().update(gradients)
        for weight, average in zip(self.network.weights, self.teacher.weights, strict=True):
            average.assign(0.5 * average + 0.5 * weight)
        tf.cond(self.optimizer.iterations % 3 == 0, self.keep, lambda: 0)

    def keep(self):
        for weight, older in zip(self.network.weights, self.older.weights, strict=True):
            older.assign(weight)
        return 0


class Spectral(Stepping):
    """A layer assigns what it computes from its kernel."""

    def make(self):
        dense = keras.layers.SpectralNormalization(keras.layers.Dense(5))
        return keras.Sequential([keras.Input((4,)), dense, keras.layers.Dense(1)])


class RateOfStep(Stepping):
    """The step sets the learning rate."""

    def update(self, gradients):
        self.count.assign_add(1)
        self.optimizer.learning_rate.assign(0.5 / tf.cast(self.count, tf.float32))
        super().update(gradients)


def trained(kind, fit=keras.Model.fit, epochs=2, rows=ROWS, **options):
    model = kind()
    model.compile(keras.optimizers.SGD(0.1), "mse", **options)
    data = {"x": features(rows), "y": targets(rows), "batch_size": 8}
    history = fit(model, **data, epochs=epochs, shuffle=False, verbose=0).history
    return model, history


def copies(strategy, variables):
    local = strategy.experimental_local_results
    return list(zip(*(local(v.value) for v in variables), strict=True))


@pytest.mark.parametrize("kind", [Clipped, Taught, Spectral, RateOfStep])
def test_state_that_does_not_depend_on_rows_is_assigned_without_rows(kind, mirrored2):
    expected, expected_history = trained(kind)
    with mirrored2.scope():
        model, history = trained(kind, phalanx.fit)
    for of_replica in copies(mirrored2, model.variables):
        assert_close(values(of_replica), values(expected.variables))
    assert history["own"] == pytest.approx(expected_history["own"], rel=1e-5)


def test_what_replicas_add_up_is_assigned_without_rows(mirrored2):
    class Summing(Stepping):
        """The step remembers the sum of all targets."""

        def __init__(self):
            super().__init__()
            self.total = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def logs(self, x, y, loss):
            share = current_replica_batch()
            own = tf.reduce_sum(y)
            self.total.assign(own if share is None else share.over_replicas(own))
            return super().logs(x, y, loss)

    expected, _ = trained(Summing, epochs=1)
    with mirrored2.scope():
        model, _ = trained(Summing, phalanx.fit, epochs=1)
    for (total,) in copies(mirrored2, [model.total]):
        assert float(total) == pytest.approx(float(expected.total.numpy()), rel=1e-5)


class Sparse(Stepping):
    """A sum over features, of which there are twice as many as rows, and half a sum over rows."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            hidden = self.network.layers[0](x)
            error = tf.nn.l2_loss(self.network.layers[1](hidden) - y) / 8.0
            loss = error + tf.reduce_sum(tf.reduce_mean(hidden, axis=0)[:4])
        self.update(tape.gradient(loss, self.network.trainable_variables))
        return self.logs(x, y, loss)

    def make(self):
        layers = [keras.layers.Dense(8, activation="sigmoid"), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((4,)), *layers])


def test_a_sum_over_features_is_none_over_rows(mirrored2):
    def fitted(fit=keras.Model.fit):
        model = Sparse()
        model.compile(keras.optimizers.SGD(0.1))
        data = tf.data.Dataset.from_tensor_slices((features(16), targets(16)))
        return model, fit(
            model, data.batch(8, drop_remainder=True), shuffle=False, verbose=0
        ).history

    expected, expected_history = fitted()
    with mirrored2.scope():
        model, history = fitted(phalanx.fit)
    assert_close(values(model.variables), values(expected.variables))
    assert history["own"] == pytest.approx(expected_history["own"], rel=1e-5)


class OwnLoss(Stepping):
    """The step returns its loss under the name of the tracker that it does not update."""

    def logs(self, x, y, loss):
        logs = {metric.name: metric.result() for metric in self.metrics}
        return {**logs, "loss": loss, "more": 2.0 * loss}


class OfFunction(Stepping):
    """A function of the step's computes results; the step gives another value such a name."""

    def __init__(self):
        super().__init__()
        self.seen, self.other = keras.metrics.Mean(name="seen"), keras.metrics.Mean(name="other")

    @property
    def metrics(self):
        return [self.seen, self.other]

    @tf.function
    def noted(self, x):
        self.seen.update_state(tf.reduce_mean(x))
        self.other.update_state(tf.reduce_mean(x))
        return {"seen": self.seen.result(), "other": self.other.result()}

    def logs(self, x, y, loss):
        return {**self.noted(x), "other": loss, "more": 2.0 * loss}


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_own_value_keeps_the_name_of_a_metric(replicas, request):
    _, expected = trained(OwnLoss)
    with request.getfixturevalue(f"mirrored{replicas}").scope():
        _, history = trained(OwnLoss, phalanx.fit)
    assert history.keys() == expected.keys()
    for name in expected:
        assert history[name] == pytest.approx(expected[name], rel=1e-5)


def test_a_result_from_a_function_is_known_by_its_name(mirrored1):
    _, expected = trained(OfFunction)
    with mirrored1.scope():
        _, history = trained(OfFunction, phalanx.fit)
    assert history.keys() == expected.keys()
    for name in expected:
        assert history[name] == pytest.approx(expected[name], rel=1e-5)


def test_a_metric_that_a_script_defines_later_is_read_over_all_samples(mirrored2):
    def step_with_own_metrics():
        class Share(keras.metrics.Metric):
            """The share of positive targets: not a mean of means."""

            def __init__(self):
                super().__init__(name="share")
                self.positive = self.add_weight(name="positive", initializer="zeros")
                self.seen = self.add_weight(name="seen", initializer="zeros")

            def update_state(self, y):
                self.positive.assign_add(tf.reduce_sum(tf.cast(y > 0, tf.float32)))
                self.seen.assign_add(tf.reduce_sum(y**2))

            def result(self):
                return self.positive / self.seen

        class Measured(Stepping):
            def __init__(self):
                super().__init__()
                self.share = Share()
                self.sums = [keras.metrics.Sum(name=f"sum_{i}") for i in range(4)]

            @property
            def metrics(self):
                return [self.share, *self.sums]

            def logs(self, x, y, loss):
                rows = tf.shape(x)[0]
                self.share.update_state(y)
                values = (loss, tf.reduce_sum(y), tf.cast(rows, tf.float32), 1.0)
                for metric, value in zip(self.sums, values, strict=True):
                    metric.update_state(value)
                results = {metric.name: metric.result() for metric in self.metrics}
                return {"loss": loss, **results}

        return Measured

    _, expected = trained(step_with_own_metrics())
    phalanx.enable()  # as under phalanx run, before the script defines a class
    try:
        with mirrored2.scope():
            _, history = trained(step_with_own_metrics(), keras.Model.fit)
    finally:
        phalanx.disable()
    for name in ("share", "sum_0", "sum_1", "sum_2", "sum_3"):
        assert history[name] == pytest.approx(expected[name], rel=1e-5), name


class Halved(keras.metrics.Mean):
    """Its result is a dictionary with the result of the class that it extends."""

    def result(self):
        mean = super().result()
        return {"whole": mean, "half": mean / 2}


class ReadTwice(Stepping):
    """The step reads a metric before and after it updates or resets it."""

    def __init__(self):
        super().__init__()
        self.seen = keras.metrics.Mean(name="seen")
        self.of_batch = keras.metrics.Mean(name="of_batch")
        self.halved = Halved(name="halved")

    @property
    def metrics(self):
        return [self.seen, self.of_batch, self.halved]

    def logs(self, x, y, loss):
        before = self.seen.result()
        for metric in self.metrics:
            metric.update_state(tf.reduce_mean(tf.square(y), axis=-1))
        whole = self.of_batch.result()
        self.of_batch.reset_state()
        return {
            "gain": self.seen.result() - before,
            "last_batch": whole,
            "of_batch_twice": 2.0 * whole,
            "seen_twice": 2.0 * self.seen.result(),
            **self.halved.result(),
        }


def test_a_metric_is_read_before_and_after_it_is_assigned(mirrored2):
    rows = 24
    _, expected = trained(ReadTwice, rows=rows)
    with mirrored2.scope():
        _, history = trained(ReadTwice, phalanx.fit, rows=rows)
    assert history.keys() == expected.keys()
    for name, values_of_epochs in expected.items():
        assert history[name] == pytest.approx(values_of_epochs, rel=1e-5), name


class WithoutGradients(Stepping):
    """Nothing of the network is trained; Keras's `apply` then does nothing."""

    def update(self, gradients):
        del gradients
        self.optimizer.apply([], [])


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_optimizer_without_gradients_does_nothing(replicas, request):
    expected, expected_history = trained(WithoutGradients)
    with request.getfixturevalue(f"mirrored{replicas}").scope():
        model, history = trained(WithoutGradients, phalanx.fit)
    assert_close(values(model.variables), values(expected.variables))
    assert int(model.optimizer.iterations.numpy()) == 0
    assert history["own"] == pytest.approx(expected_history["own"], rel=1e-5)


class ForEachRow(Stepping):
    """Returns a value for each row, and one for each feature."""

    def logs(self, x, y, loss):
        errors = keras.losses.mean_squared_error(y, self.network(x))
        return {"rows": errors, "features": tf.reduce_mean(x, axis=0), "own": loss}


@pytest.mark.parametrize("rows", [17, *(pytest.param(n, marks=pytest.mark.full) for n in (21, 22))])
def test_a_value_for_each_row_is_one_for_each_row_of_the_batch(rows, mirrored3):
    _, expected = trained(ForEachRow, rows=rows)
    with mirrored3.scope():
        _, history = trained(ForEachRow, phalanx.fit, rows=rows)
    assert history.keys() == expected.keys()
    for name, values_of_epochs in expected.items():
        for got, value in zip(history[name], values_of_epochs, strict=True):
            assert np.shape(got) == np.shape(value), name
            assert got == pytest.approx(value, rel=1e-5), name
