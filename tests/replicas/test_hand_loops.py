"""Hand-written loops: gradients are clipped after they were added up."""

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import assert_close, features, on_replicas, small_model, targets, values

import phalanx
from phalanx.errors import ConfigurationError

GLOBAL_BATCH = 8
SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam
OPTIMIZERS = {
    "global_clipnorm": lambda: SGD(0.5, global_clipnorm=0.05),
    "clipnorm": lambda: SGD(0.5, momentum=0.9, clipnorm=0.05),
    "clipvalue": lambda: SGD(0.5, clipvalue=0.01),
    "accumulation": lambda: Adam(0.01, gradient_accumulation_steps=2, global_clipnorm=0.05),
    "ema": lambda: Adam(
        0.01, weight_decay=0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
}


@contextlib.contextmanager
def enabled():
    phalanx.enable()
    try:
        yield
    finally:
        phalanx.disable()


def train(strategy, make_optimizer, prepare=lambda optimizer: optimizer, rows=13):
    """The loop of TensorFlow's guide: each replica's loss over the global batch size."""
    with strategy.scope():
        model = small_model()
        optimizer = prepare(make_optimizer())
        optimizer.build(model.trainable_variables)
    whole = tf.data.Dataset.from_tensor_slices((features(rows), targets(rows)))
    dataset = strategy.experimental_distribute_dataset(whole.batch(GLOBAL_BATCH))

    def step(x, y):
        with tf.GradientTape() as tape:
            each = tf.reduce_mean((model(x, training=True) - y) ** 2, -1)
            loss = tf.nn.compute_average_loss(each, global_batch_size=GLOBAL_BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    run = tf.function(lambda x, y: strategy.run(step, args=(x, y)), autograph=False)
    losses = []
    for _ in range(2):
        for x, y in dataset:
            losses.append(float(strategy.reduce("SUM", run(x, y), axis=None)))
    # The copies of every replica, which must all be the same.
    for variable in model.trainable_variables:
        first, *others = [c.numpy() for c in strategy.experimental_local_results(variable.value)]
        assert all((other == first).all() for other in others)
    return [*values(model.weights), *values(optimizer.variables), np.array(losses)]


@functools.cache
def one_device(name):
    """The same loop where `compute_average_loss` sees one replica and all samples."""
    return train(tf.distribute.get_strategy(), OPTIMIZERS[name])


@pytest.mark.parametrize(
    "name", ["global_clipnorm", pytest.param("accumulation", marks=pytest.mark.full)]
)
def test_enable_makes_a_loop_one_devices(name, mirrored2):
    expected = one_device(name)
    with enabled():
        assert_close(train(mirrored2, OPTIMIZERS[name]), expected)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n == "accumulation" else pytest.mark.full) for n in OPTIMIZERS],
)
def test_distribute_optimizer_makes_a_loop_one_devices(name, mirrored3):
    expected = one_device(name)
    assert not phalanx.is_enabled()
    got = train(mirrored3, OPTIMIZERS[name], phalanx.distribute_optimizer)
    assert_close(got, expected)


def test_both_together_add_up_once(mirrored2):
    expected = one_device("global_clipnorm")
    with enabled():
        got = train(mirrored2, OPTIMIZERS["global_clipnorm"], phalanx.distribute_optimizer)
    assert_close(got, expected)


def test_on_one_device_a_distributed_optimizer_is_as_before():
    expected = one_device("global_clipnorm")
    got = train(
        tf.distribute.get_strategy(), OPTIMIZERS["global_clipnorm"], phalanx.distribute_optimizer
    )
    assert_close(got, expected, tolerance=0)


def test_two_gradients_of_the_facts(mirrored2):
    with mirrored2.scope():
        variable, optimizer = keras.Variable([0.0, 0.0]), SGD(1.0, global_clipnorm=1.0)
        optimizer.build([variable])
    phalanx.distribute_optimizer(optimizer)
    gradients = tf.constant([[100.0, 0.0], [0.0, 1.0]])
    on_replicas(mirrored2, lambda g: optimizer.apply([g], [variable]), gradients)
    assert variable.numpy().tolist() == pytest.approx([-0.99995, -0.0099995])
    assert int(optimizer.iterations.numpy()) == 1


def test_other_optimizers_are_left_alone(mirrored2):
    phalanx.distribute_optimizer(SGD())
    with mirrored2.scope():
        variable, other = keras.Variable([0.0, 0.0]), SGD(1.0, global_clipnorm=1.0)
        other.build([variable])
    gradients = tf.constant([[100.0, 0.0], [0.0, 1.0]])
    on_replicas(mirrored2, lambda g: other.apply([g], [variable]), gradients)
    assert variable.numpy().tolist() == pytest.approx([-1.0, -1.0])


def test_loss_scaling_unscales_and_clips_the_total(mirrored2):
    with mirrored2.scope():
        variable = keras.Variable([0.0, 0.0])
        inner = SGD(1.0, global_clipnorm=1.0)
        optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=16.0)
        optimizer.build([variable])
    phalanx.distribute_optimizer(optimizer)
    gradients = tf.constant([[1600.0, 0.0], [0.0, 16.0]])
    on_replicas(mirrored2, lambda g: optimizer.apply([g], [variable]), gradients)
    assert variable.numpy().tolist() == pytest.approx([-0.99995, -0.0099995])


def test_one_replica_that_overflows_skips_the_step_of_all(mirrored2):
    with mirrored2.scope():
        variable = keras.Variable([3.0])
        optimizer = keras.optimizers.LossScaleOptimizer(SGD(1.0), initial_scale=16.0)
        optimizer.build([variable])
    phalanx.distribute_optimizer(optimizer)
    gradients = tf.constant([[np.inf], [16.0]])
    on_replicas(mirrored2, lambda g: optimizer.apply([g], [variable]), gradients)
    copies = mirrored2.experimental_local_results(variable.value)
    assert [c.numpy().tolist() for c in copies] == [[3.0], [3.0]]
    assert float(optimizer.dynamic_scale.numpy()) == 8.0


@pytest.mark.parametrize("what", ["adam", object(), None])
def test_what_is_no_optimizer_is_refused(what):
    with pytest.raises(ConfigurationError, match=r"needs a keras.optimizers.Optimizer .* found"):
        phalanx.distribute_optimizer(what)
