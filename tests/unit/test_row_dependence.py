"""Which indices are the number of the row that takes them."""

import pytest
import tensorflow as tf

from phalanx.gradients.row_dependence import is_number_of_row, is_row_of_entry

OWN = {
    "range": lambda n: tf.range(n),
    "int64": lambda n: tf.cast(tf.range(n), tf.int64),
    "column": lambda n: tf.range(n)[:, None],
    "reshaped": lambda n: tf.reshape(tf.range(n), [n, 1, 1]),
    "tiled": lambda n: tf.tile(tf.reshape(tf.range(n), [n, 1]), [1, 6]),
    "broadcast": lambda n: tf.broadcast_to(tf.range(n)[:, None], [n, 6]),
}
OTHERS = {
    "descending": lambda n: tf.range(n - 1, -1, -1),
    "from 1": lambda n: tf.range(1, n + 1),
    "reversed": lambda n: tf.range(n)[::-1],
    "pairs, tiled": lambda n: tf.tile(tf.reshape(tf.range(n), [1, -1]), [n, 1]),
    "pairs, broadcast": lambda n: tf.broadcast_to(tf.range(n), [n, n]),
    "tiled, then reshaped": lambda n: tf.reshape(tf.tile(tf.range(n), [6]), [n, 6]),
    "of entries": lambda n: tf.reshape(tf.range(n * 6), [n, 6]),
}


def traced(make):
    found = []

    @tf.function(input_signature=[tf.TensorSpec([None, 6])], autograph=False)
    def step(x):
        found.append(make(tf.shape(x)[0]))
        return found[0]

    step.get_concrete_function()
    return found[0]


@pytest.mark.parametrize("name", OWN)
def test_the_number_of_the_row(name):
    assert is_number_of_row(traced(OWN[name]))


@pytest.mark.parametrize("name", OTHERS)
def test_numbers_of_other_rows(name):
    assert not is_number_of_row(traced(OTHERS[name]))


def words(n):
    return tf.strings.split(tf.fill([n], "a b"))


def test_the_row_of_each_word_of_a_text():
    assert is_row_of_entry(traced(lambda n: words(n).value_rowids()))
    assert is_row_of_entry(traced(lambda n: tf.cast(words(n).value_rowids(), tf.int32)))
    by_splits = lambda n: tf.RaggedTensor.from_row_splits(tf.range(n), [0, n])  # noqa: E731
    assert is_row_of_entry(traced(lambda n: by_splits(n).value_rowids()))


def test_the_place_of_a_word_in_its_text_is_no_row():
    def places(n):
        (split,) = [one for one in words(n).values.graph.get_operations() if "Split" in one.type]
        return split.outputs[0][:, 1]

    assert not is_row_of_entry(traced(places))
    assert not is_row_of_entry(traced(lambda n: tf.strings.length(words(n).values)))
