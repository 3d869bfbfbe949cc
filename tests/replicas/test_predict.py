"""`predict` gives what one device gives, whatever the shapes of a model's output are."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import features

import phalanx
from phalanx.errors import TrainingError


class Calls(keras.Model):
    """Computes what a function says."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)


def predicted(function, strategy, x, **options):
    """What one device predicts, and what the replicas do."""
    model = Calls(function)
    model.compile("sgd", "mse")
    expected = keras.Model.predict(model, x, verbose=0, **options)
    with strategy.scope():
        model = Calls(function)
        model.compile("sgd", "mse")
    return expected, phalanx.predict(model, x, verbose=0, **options)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: keras.ops.reshape(x, (-1, 2)),
        lambda x: keras.ops.repeat(x, 3, axis=0),
        lambda x: keras.ops.reshape(x, (-1, 8))[:, :3],
    ],
    ids=["two rows a row", "three rows a row", "one row of two"],
)
def test_a_model_may_return_another_number_of_rows(function, mirrored2):
    x = features(22)  # batches of 8, 8 and 6: each replica has an even number of rows or three
    x = x[:20] if function(tf.constant(x[:2])).shape[0] == 1 else x
    expected, got = predicted(function, mirrored2, x, batch_size=8)
    assert got.shape == expected.shape
    assert np.array_equal(got, expected)


def test_replicas_without_rows_give_none(mirrored3):
    expected, got = predicted(
        lambda x: keras.ops.repeat(x, 2, 0), mirrored3, features(4), batch_size=3
    )
    assert np.array_equal(got, expected)


def of_lengths(*lengths):
    """Batches of three rows, padded to their longest; lengths differ from batch to batch."""
    rows = tf.data.Dataset.from_tensor_slices(list(lengths))
    return rows.map(lambda n: tf.fill((n, 1), tf.cast(n, tf.float32))).padded_batch(3)


def test_batches_that_are_padded_to_different_lengths_are_ragged(mirrored2):
    x = of_lengths(1, 2, 3, 4, 5, 6, 7)
    expected, got = predicted(lambda x: keras.ops.repeat(x, 2, -1), mirrored2, x)
    assert isinstance(expected, tf.RaggedTensor)
    assert isinstance(got, tf.RaggedTensor)
    assert got.shape == expected.shape
    assert got.to_list() == expected.to_list()


def test_one_number_for_a_batch_is_that_of_the_batch(mirrored2):
    def outputs(x):
        return {"rows": x, "mean": keras.ops.mean(x), "sum": keras.ops.sum(x)}

    for options in ({}, {"batch_size": 5}):  # one batch, and two with uneven parts
        expected, got = predicted(outputs, mirrored2, features(8), **options)
        for name, value in expected.items():
            assert got[name].shape == value.shape
            assert got[name] == pytest.approx(value, rel=1e-5)


def test_a_scalar_alone_is_one_for_each_batch(mirrored2):
    expected, got = predicted(keras.ops.sum, mirrored2, features(7), batch_size=3)
    assert got == pytest.approx(expected, rel=1e-5)


def test_an_integer_for_a_batch_is_refused(mirrored2):
    with pytest.raises(TrainingError, match=r"one int32 for all rows.*--workers 1"):
        predicted(lambda x: {"a": x, "n": keras.ops.shape(x)[0]}, mirrored2, features(4))


def test_lengths_that_each_replica_finds_are_refused(mirrored2):
    def trimmed(x):
        return x[:, : tf.reduce_max(tf.cast(x[:, 0], tf.int32))]

    x = np.tile(np.arange(1, 5, dtype="float32")[:, None], (1, 6))
    with pytest.raises(TrainingError, match=r"\('rows', 2\), \('rows', 4\).*Pad"):
        predicted(trimmed, mirrored2, x, batch_size=4)


def test_a_dataset_of_a_tuple_of_inputs(mirrored2):
    x = tf.data.Dataset.from_tensor_slices(((features(7), features(7, seed=1)),)).batch(4)
    expected, got = predicted(lambda pair: pair[0] - pair[1], mirrored2, x)
    assert np.array_equal(got, expected)
