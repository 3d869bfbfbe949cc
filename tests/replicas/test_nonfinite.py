"""A gradient that is not finite: fit ends and names the cause, or does what its option says."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import assert_close, features, on_replicas, small_model, targets, values

import phalanx
from phalanx import clip
from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import NonFiniteError
from phalanx.gradients.nonfinite import guard_of
from phalanx.training.step_runner import _explain

SGD = keras.optimizers.SGD
FIT = {"batch_size": 8, "epochs": 1, "shuffle": False, "verbose": 0}
ROWS = 24
BAD = 12 + 2  # in the second batch, among the rows of replica 1 of 2


def data(bad=BAD, value=np.nan):
    x = features(ROWS)
    if bad is not None:
        x[bad, 1] = value
    return x, targets(ROWS)


def model_with(on_nonfinite=None, *, optimizer=None, **options):
    optimizer = optimizer or SGD(0.1, momentum=0.9)
    if on_nonfinite:
        optimizer = clip.attach(optimizer, on_nonfinite=on_nonfinite)
    return small_model(optimizer, **options)


def without_the_second_batch():
    """What is left of a training in which the second step did nothing."""
    x, y = data(bad=None)
    kept = np.r_[0:8, 16:24]
    model = model_with()
    phalanx.fit(model, x[kept], y[kept], **FIT)
    return values(model.weights)


@pytest.mark.parametrize("value", [np.nan, pytest.param(np.inf, marks=pytest.mark.full)])
def test_fit_ends_and_names_variable_step_and_replica(value, mirrored2):
    with mirrored2.scope():
        model = model_with()
    output = r"(?s)sequential.*/(kernel|bias) had NaN.*at step 2;.*worker 0 \(replica 1\).*skip"
    with pytest.raises(NonFiniteError, match=output):
        phalanx.fit(model, *data(value=value), **FIT)


def test_every_replica_it_came_from_is_named(mirrored3):
    x, y = data()
    x[8:11, 0], x[14:, 0] = np.nan, np.nan
    with mirrored3.scope():
        model = model_with()
    with pytest.raises(NonFiniteError, match=r"step 2;.*\(replica 0, 2\)"):
        phalanx.fit(model, x, y, **FIT)


def test_one_device_names_variable_and_step():
    with pytest.raises(NonFiniteError, match=r"(kernel|bias) had NaN.*at step 2;.*worker 0\."):
        phalanx.fit(model_with(), *data(), **FIT)


def test_a_long_epoch_ends_soon_after_the_step(mirrored2):
    ended = []

    class Count(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            ended.append(batch)

    with mirrored2.scope():
        model = model_with()
    x = features(400)
    x[10] = np.nan
    with pytest.raises(NonFiniteError, match="at step 6"):
        phalanx.fit(model, x, targets(400), batch_size=2, shuffle=False, verbose=0,
                    callbacks=[Count()])  # fmt: skip
    assert len(ended) < 40


@pytest.mark.parametrize("steps_per_execution", [pytest.param(1, marks=pytest.mark.full), 3])
def test_skip_leaves_weights_as_without_that_step_and_counts(steps_per_execution, mirrored2):
    expected = without_the_second_batch()
    with mirrored2.scope():
        model = model_with("skip", steps_per_execution=steps_per_execution)
    history = phalanx.fit(model, *data(), **FIT).history
    assert_close(values(model.weights), expected)
    assert history["nonfinite_count"] == [1.0]
    assert int(model.optimizer.iterations.numpy()) == 2


def test_skip_on_one_device():
    expected = without_the_second_batch()
    model = model_with("skip")
    logs = phalanx.fit(model, *data(), **FIT).history
    assert_close(values(model.weights), expected)
    assert logs["nonfinite_count"] == [1.0]


def test_skip_with_gradient_accumulation(mirrored2):
    def accumulating():
        return SGD(0.1, gradient_accumulation_steps=2)

    x, y = data(bad=None)
    kept = np.r_[0:8, 16:24]
    expected = model_with(optimizer=accumulating())
    phalanx.fit(expected, x[kept], y[kept], **FIT)
    with mirrored2.scope():
        model = model_with("skip", optimizer=accumulating())
    phalanx.fit(model, *data(), **FIT)
    assert_close(values(model.weights), values(expected.weights))


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.full), 2])
def test_zero_takes_bad_entries_as_nothing(replicas, request):
    """Only the first layer's kernel row of the bad feature is bad in a linear model."""

    class Row(keras.Model):
        def __init__(self):
            super().__init__()
            self.w = self.add_weight(shape=(4,), initializer="ones", name="w")

        def call(self, x):
            return x * self.w

    strategy = (
        request.getfixturevalue("mirrored2") if replicas == 2 else tf.distribute.get_strategy()
    )
    with strategy.scope():
        model = Row()
        model.compile(clip.attach(SGD(0.1), on_nonfinite="zero"), loss=lambda y, p: p)
    x, _ = data()
    history = phalanx.fit(model, x, targets(ROWS), **FIT).history
    gradient = sum(x[i : i + 8].mean(0) / 4 for i in (0, 8, 16))
    clean = np.r_[0:8, 16:24]
    gradient[1] = x[clean, 1].reshape(2, 8).mean(1).sum() / 4
    np.testing.assert_allclose(model.w.numpy(), 1 - 0.1 * gradient, rtol=1e-5)
    assert history["nonfinite_count"] == [1.0]


def test_ignore_does_what_keras_does(mirrored2):
    with mirrored2.scope():
        model = model_with("ignore")
    history = phalanx.fit(model, *data(), **FIT).history
    assert "nonfinite_count" not in history
    assert np.isnan(values(model.weights)[0]).any()


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.full), 2])
def test_terminate_on_nan_keeps_keras_way(replicas, request):
    strategy = (
        request.getfixturevalue("mirrored2") if replicas == 2 else tf.distribute.get_strategy()
    )
    with strategy.scope():
        model = model_with()
    options = {**FIT, "epochs": 3, "callbacks": [keras.callbacks.TerminateOnNaN()]}
    history = phalanx.fit(model, *data(), **options)
    assert history.epoch == [0]
    assert np.isnan(history.history["loss"]).all()


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.full), 2])
def test_an_overflow_under_loss_scaling_is_its_own_business(replicas, request):
    strategy = (
        request.getfixturevalue("mirrored2") if replicas == 2 else tf.distribute.get_strategy()
    )
    with strategy.scope():
        scaled = keras.optimizers.LossScaleOptimizer(SGD(0.1), initial_scale=2.0**127)
        model = model_with(optimizer=scaled)
    x, y = data(bad=None)
    phalanx.fit(model, x, y * 1e4, **FIT)
    assert float(scaled.dynamic_scale.numpy()) < 2.0**127
    assert all(np.isfinite(w).all() for w in values(model.weights))


def test_a_second_fit_is_watched_like_the_first(mirrored2):
    with mirrored2.scope():
        model = model_with()
    phalanx.fit(model, *data(bad=None), **FIT)
    with pytest.raises(NonFiniteError, match="at step 5"):
        phalanx.fit(model, *data(), **FIT)


def test_a_fit_after_one_that_ended_badly_starts_with_a_clean_record(mirrored2):
    with mirrored2.scope():
        model = model_with()
    before = model.get_weights()
    with pytest.raises(NonFiniteError):
        phalanx.fit(model, *data(), **FIT)
    model.set_weights(before)
    for variable in model.optimizer.variables[2:]:
        variable.assign(np.zeros(variable.shape))
    phalanx.fit(model, *data(bad=None), **FIT)


def test_counts_are_those_of_one_fit(mirrored2):
    with mirrored2.scope():
        model = model_with("skip")
    for _ in range(2):
        assert phalanx.fit(model, *data(), **FIT).history["nonfinite_count"] == [1.0]


@pytest.mark.parametrize("first", ["train_on_batch", "TerminateOnNaN"])
def test_a_step_that_was_traced_unwatched_is_watched_by_fit(first, mirrored2):
    good, bad = data(bad=None), data()
    with mirrored2.scope():
        model = model_with()
    if first == "train_on_batch":
        phalanx.enable()
        try:
            model.train_on_batch(good[0][:8], good[1][:8])
        finally:
            phalanx.disable()
    else:
        phalanx.fit(model, *good, callbacks=[keras.callbacks.TerminateOnNaN()], **FIT)
    with pytest.raises(NonFiniteError):
        phalanx.fit(model, *bad, **FIT)


def test_the_variable_of_an_own_step_that_trains_a_part_is_named_rightly(mirrored2):
    class Part(keras.Sequential):
        def train_step(self, data):
            x, y = data
            last = self.layers[-1].trainable_variables
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x))
            self.optimizer.apply(tape.gradient(loss, last), last)
            return {"loss": loss}

    with mirrored2.scope():
        model = Part([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1, name="head")])
        optimizer = SGD(0.1)
        model.compile(optimizer, "mse")
        optimizer.build(model.layers[-1].trainable_variables)
    with pytest.raises(NonFiniteError, match="head/kernel"):
        phalanx.fit(model, *data(), **FIT)


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.full), 2])
def test_a_step_that_xla_compiles_is_watched_too(replicas, request):
    strategy = tf.distribute.get_strategy()
    if replicas == 2:
        strategy = request.getfixturevalue("mirrored2")
    with strategy.scope():
        model = model_with(jit_compile=True)
    with pytest.raises(NonFiniteError, match="at step 2"):
        phalanx.fit(model, *data(), **FIT)


def test_finite_gradients_with_an_infinite_sum_are_distinguished(mirrored2):
    with mirrored2.scope():
        variable = keras.Variable([1.0])
        optimizer = clip.attach(SGD(1.0), on_nonfinite="skip")
        optimizer.build([variable])
    phalanx.distribute_optimizer(optimizer)
    gradients = tf.constant([[3e38], [3e38]])
    on_replicas(mirrored2, lambda g: optimizer.apply([g], [variable]), gradients)
    assert variable.numpy().tolist() == [1.0]
    trouble = guard_of(optimizer).trouble()
    assert trouble.replicas == ()
    output = _explain(["head/kernel"], trouble, ReplicaTopology(total=2, local=1))
    assert "each worker's own was finite, their sum was not" in output


@pytest.mark.parametrize(("policy", "kept"), [("skip", [1.0, 2.0]), ("zero", [1.0, 1.0])])
def test_a_hand_written_loop_leaves_bad_steps_out_and_counts_them(policy, kept, mirrored2):
    with mirrored2.scope():
        variable = keras.Variable([1.0, 2.0])
        optimizer = clip.attach(SGD(1.0), on_nonfinite=policy)
        optimizer.build([variable])
    phalanx.distribute_optimizer(optimizer)
    gradients = tf.constant([[np.nan, 0.5], [0.0, 0.5]])
    on_replicas(mirrored2, lambda g: optimizer.apply([g], [variable]), gradients)
    assert variable.numpy().tolist() == kept
    assert clip.nonfinite_count(optimizer) == 1
