"""Which indices are the number of the row that takes them."""

import pytest
import tensorflow as tf

from phalanx.gradients.row_dependence import is_number_of_row

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
