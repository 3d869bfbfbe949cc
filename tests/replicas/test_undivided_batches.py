"""Batches that are not divided are said to be so, once, and steps on single ones are right."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import phalanx
from phalanx.training import batch_methods

MESSAGE = "so it is not divided"


class NearestOfExamples(keras.layers.Layer):
    def call(self, inputs):
        examples, queries = inputs
        means = tf.reduce_mean(tf.reshape(examples, (3, 2, -1)), axis=1)
        return -tf.reduce_sum((queries[:, None] - means) ** 2, axis=-1)

    def compute_output_shape(self, shapes):
        return (shapes[1][0], 3)


def by_examples():
    keras.utils.set_random_seed(2)
    examples, queries = keras.Input((4,)), keras.Input((4,))
    embed = keras.layers.Dense(5)
    out = NearestOfExamples()([embed(examples), embed(queries)])
    model = keras.Model([examples, queries], out)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return model


def task(seed, queries=9):
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(6, 4)).astype("float32"), rng.normal(size=(queries, 4)).astype("float32"))
    return x, rng.integers(0, 3, queries)


def tasks():
    ((examples, queries), y) = task(0, 27)
    parts = (np.stack([examples] * 3), queries.reshape(3, 9, 4)), y.reshape(3, 9)
    # Rows of unknown number, so that the batches themselves show it.
    free = lambda x, y: ((tf.gather(x[0], tf.where(x[0][:, 0] < 9)[:, 0]), x[1]), y)  # noqa: E731
    return tf.data.Dataset.from_tensor_slices(parts).map(free)


def test_it_is_printed_once(mirrored2, capfd):
    assert tasks().element_spec[0][0].shape[0] is None
    with mirrored2.scope():
        phalanx.fit(by_examples(), tasks(), validation_data=tasks(), epochs=3, verbose=0)
    assert capfd.readouterr().err.count(MESSAGE) == 1


@pytest.mark.parametrize("replicas", [2, 3])
def test_single_batches(replicas, request):
    def steps(model, train, test, predict):
        logs = [train(model, *task(i, 7 + i)) for i in range(4)]
        return [*logs, test(model, *task(9))], predict(model, task(9)[0]), model.get_weights()

    plain = steps(
        by_examples(),
        keras.Model.train_on_batch,
        keras.Model.test_on_batch,
        keras.Model.predict_on_batch,
    )
    with request.getfixturevalue(f"mirrored{replicas}").scope():
        several = steps(
            by_examples(),
            batch_methods.train_on_batch,
            batch_methods.test_on_batch,
            batch_methods.predict_on_batch,
        )
    for one, other in zip(plain, several, strict=True):
        for expected, found in zip(one, other, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
