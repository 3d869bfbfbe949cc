"""Batches of which a part is None, as Keras takes them: `(x, y, None)` has no sample weights."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import phalanx
from phalanx.data.adapt import make_batch_source
from phalanx.distributed.topology import ReplicaTopology

BATCHES, BATCH = 4, 6


def batch(number):
    x = np.random.default_rng(number).normal(size=(BATCH, 3)).astype("float32")
    return x, x[:, :1], None


def generator():
    for number in itertools.count():
        yield batch(number)


def dataset():
    x = np.concatenate([batch(number)[0] for number in range(BATCHES)])
    return tf.data.Dataset.from_tensor_slices(x).batch(BATCH).map(lambda x: (x, x[:, :1], None))


CASES = {"generator": generator, "dataset": dataset}
KINDS = pytest.mark.parametrize("kind", CASES)


def trained(fit, kind):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", weighted_metrics=["mae"])
    options = {"validation_data": CASES[kind](), "validation_steps": 2}
    history = fit(model, CASES[kind](), steps_per_epoch=BATCHES, epochs=1, verbose=0, **options)
    return history.history, model.get_weights()


@KINDS
@pytest.mark.filterwarnings("ignore:.shuffle=True. was passed")
def test_fit_gives_what_keras_gives(kind):
    wanted, wanted_weights = trained(keras.Model.fit, kind)
    history, weights = trained(phalanx.fit, kind)
    assert history == pytest.approx({name: pytest.approx(v) for name, v in wanted.items()})
    for one, other in zip(weights, wanted_weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@KINDS
def test_a_worker_of_two_gets_its_rows(kind):
    topology = ReplicaTopology(first=1, total=2)
    source = make_batch_source(CASES[kind](), topology=topology, seed=0)
    assert source.batch_spec[2] is None
    _, ((count, (x, _, weights)),) = next(iter(source.open(0)))
    assert int(count) == BATCH // 2
    assert weights is None
    np.testing.assert_array_equal(x, batch(0)[0][BATCH // 2 :])
