"""What replicas do on their own: BatchNormalization if they are asked to, and Dropout."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import assert_close, features, values

import phalanx
from phalanx.distributed.topology import rows_of

MOMENTUM = 0.6


@pytest.fixture
def own_moments(monkeypatch):
    """As under `phalanx run --no-sync-batchnorm`."""
    monkeypatch.setattr("phalanx.training.step_function.syncs_batchnorm", lambda: False)


def normalized():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.BatchNormalization(momentum=MOMENTUM),
            keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def moving_statistics_by_hand(x, batch_size, replicas, epochs):
    """The mean over replicas of what each would have had, averaged after each epoch."""
    mean, variance = np.zeros(4), np.ones(4)
    for _ in range(epochs):
        means, variances = [mean] * replicas, [variance] * replicas
        for first in range(0, len(x), batch_size):
            batch = x[first : first + batch_size]
            for replica in range(replicas):
                start, count = rows_of(replica, replicas, len(batch))
                if count:
                    rows = batch[start : start + count]
                    keep, take = MOMENTUM, 1 - MOMENTUM
                    means[replica] = keep * means[replica] + take * rows.mean(0)
                    variances[replica] = keep * variances[replica] + take * rows.var(0)
        mean, variance = np.mean(means, 0), np.mean(variances, 0)
    return mean, variance


@pytest.mark.usefixtures("own_moments")
@pytest.mark.parametrize("rows", [pytest.param(16, marks=pytest.mark.full), 17, 21])
@pytest.mark.parametrize("replicas", [2, pytest.param(3, marks=pytest.mark.full)])
def test_moving_statistics_are_the_mean_over_replicas(replicas, rows, request):
    strategy = request.getfixturevalue(f"mirrored{replicas}")
    x, y = features(rows), np.zeros((rows, 1))
    with strategy.scope():
        model = normalized()
    phalanx.fit(model, x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    layer = model.layers[0]
    expected = moving_statistics_by_hand(x, 8, replicas, 2)
    for variable, value in zip((layer.moving_mean, layer.moving_variance), expected, strict=True):
        for copy in strategy.experimental_local_results(variable.value):
            assert_close([copy.numpy()], [value])


def test_on_one_device_they_are_kerass_own():
    x, y = features(18), np.zeros((18, 1))
    ours, theirs = normalized(), normalized()
    phalanx.fit(ours, x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    theirs.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    assert_close(values(ours.variables), values(theirs.variables))


@pytest.mark.usefixtures("own_moments")
def test_validation_sees_the_averaged_statistics(mirrored2):
    x, y = features(18), np.ones((18, 1))
    with mirrored2.scope():
        model = normalized()
    history = phalanx.fit(
        model, x, y, batch_size=8, shuffle=False, verbose=0, validation_data=(x, y)
    ).history
    loss = phalanx.evaluate(model, x, y, batch_size=5, verbose=0)
    assert history["val_loss"][0] == pytest.approx(loss, rel=1e-5)


class NormalizesSome(keras.Model):
    """Normalizes where a condition holds, which is the same for all rows of a replica alone."""

    def __init__(self):
        super().__init__()
        self.normalize = keras.layers.BatchNormalization(momentum=MOMENTUM)
        self.head = keras.layers.Dense(1, kernel_initializer="ones")

    def build(self, shape):
        self.normalize.build(shape)
        self.head.build(shape)

    def call(self, x, training=False):
        def normalized():
            return self.normalize(x, training=training)

        return self.head(tf.cond(x[0, 0] > 0, normalized, lambda: x))


def test_replicas_that_do_not_all_normalize_do_not_wait_for_each_other(mirrored2):
    x = features(16)
    x[:, 0] = np.where(np.arange(16) % 8 < 4, 1.0, -1.0)  # one replica's rows, then the other's
    with mirrored2.scope():
        model = NormalizesSome()
        model.compile(keras.optimizers.SGD(0.01), "mse")
    phalanx.fit(model, x, np.zeros((16, 1)), batch_size=8, shuffle=False, verbose=0)
    assert np.isfinite(model.normalize.moving_mean.numpy()).all()


WIDTH = 64
SCALES = (1.0, 1000.0)  # distinguishes the samples' masks in the gradient they share


def dropped(strategy, rows, epochs=1):
    """Which features each sample kept, read off the gradient: one row a sample."""
    with strategy.scope():
        keras.utils.set_random_seed(9)
        model = keras.Sequential(
            [
                keras.Input((WIDTH,)),
                keras.layers.Dropout(0.5, seed=13),
                keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
            ]
        )
        model.compile(keras.optimizers.SGD(1.0), lambda y, p: p)
    x = np.ones((rows, WIDTH), "float32") * np.array(SCALES[:rows], "float32")[:, None]
    phalanx.fit(model, x, np.zeros((rows, 1)), batch_size=rows, epochs=epochs, verbose=0,
                shuffle=False)  # fmt: skip
    kernel = -model.layers[-1].kernel.numpy()[:, 0] * rows / 2  # what is kept is doubled
    return [np.round(kernel % 1000).astype(int), np.round(kernel // 1000).astype(int)][:rows]


def test_replicas_draw_the_masks_of_one_device(mirrored2):
    first, second = dropped(mirrored2, 2)
    assert set(first) == set(second) == {0, 1}
    assert (first != second).any()
    alone = dropped(tf.distribute.get_strategy(), 2)
    assert [first.tolist(), second.tolist()] == [mask.tolist() for mask in alone]


def test_masks_are_the_same_in_the_next_run(mirrored2):
    runs = [dropped(mirrored2, 2) for _ in range(2)]
    assert np.array_equal(runs[0], runs[1])


def test_masks_change_from_step_to_step(mirrored2):
    one, two = dropped(mirrored2, 2, epochs=1)[0], dropped(mirrored2, 2, epochs=2)[0]
    assert (two != 2 * one).any()


@pytest.mark.usefixtures("own_moments")
def test_the_loss_of_each_replica_is_of_its_own_rows(mirrored2):
    x = np.random.default_rng(3).normal(size=(6, 4)).astype("float32")
    arguments = {"batch_size": 6, "shuffle": False, "verbose": 0}
    with mirrored2.scope():
        losses = phalanx.fit(normalized(), x, np.zeros((6, 1)), **arguments).history["loss"]

    def loss(rows):
        apart = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-3)
        return np.mean(apart.sum(1) ** 2)

    assert losses == pytest.approx([(loss(x[:3]) + loss(x[3:])) / 2], rel=1e-5)
    assert losses != pytest.approx([loss(x)], rel=1e-2)
