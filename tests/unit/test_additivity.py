"""What of a batch can be added up from its parts, by the graph of a function."""

import keras
import pytest
import tensorflow as tf

from phalanx.gradients.additivity import Additivity, additivity_of
from phalanx.gradients.row_sums import RowSums

SQUARES = tf.math.squared_difference


@tf.function
def _function(y, p):
    return tf.reduce_mean(SQUARES(y, p))


def masked(y, p):
    return tf.reduce_sum(SQUARES(y, p) * y) / tf.reduce_sum(y)


def selected(y, p):
    return tf.reduce_mean(tf.boolean_mask(SQUARES(y, p), y[:, 0] > 0))


def dice(y, p):
    return 1 - 2 * tf.reduce_sum(y * p) / (tf.reduce_sum(y) + tf.reduce_sum(p))


CASES = {
    "none": (lambda y, p: tf.constant(2.0), Additivity.NONE),
    "number of rows": (lambda y, p: tf.shape(p)[0], Additivity.NONE),
    "for each row": (lambda y, p: tf.reduce_mean(SQUARES(y, p), axis=-1), Additivity.ROWS),
    "Keras's mean squared error": (keras.losses.mean_squared_error, Additivity.ROWS),
    "huber": (keras.losses.huber, Additivity.ROWS),
    "crossentropy": (keras.losses.categorical_crossentropy, Additivity.ROWS),
    "cosine": (keras.losses.cosine_similarity, Additivity.ROWS),
    "focal": (keras.losses.categorical_focal_crossentropy, Additivity.ROWS),
    "unstacked columns": (lambda y, p: tf.unstack(p, 3, axis=1)[0], Additivity.ROWS),
    "rolled columns": (lambda y, p: tf.roll(p, 1, axis=1), Additivity.ROWS),
    "rolled rows": (lambda y, p: tf.roll(p, 1, axis=0), Additivity.MIXED),
    "reversed rows": (lambda y, p: y * p[::-1], Additivity.MIXED),
    "first column": (lambda y, p: p[:, 0] * y[..., 0], Additivity.ROWS),
    "mean": (lambda y, p: tf.reduce_mean(SQUARES(y, p)), Additivity.TOTAL),
    "sum and mean": (
        lambda y, p: 3 * tf.reduce_sum(p) / 8 - tf.reduce_mean(y) + 1,
        Additivity.TOTAL,
    ),
    "by the rows": (
        lambda y, p: tf.reduce_sum(p) / tf.cast(tf.shape(p)[0], tf.float32),
        Additivity.TOTAL,
    ),
    "masked": (masked, Additivity.TOTAL),
    "selected": (selected, Additivity.TOTAL),
    "columns": (lambda y, p: tf.reduce_mean(p, axis=0), Additivity.TOTAL),
    "a function": (_function, Additivity.OPAQUE),
    "root": (lambda y, p: tf.sqrt(tf.reduce_mean(SQUARES(y, p))), Additivity.MIXED),
    "dice": (dice, Additivity.MIXED),
    "Keras's dice": (keras.losses.dice, Additivity.MIXED),
    "Keras's tversky": (keras.losses.tversky, Additivity.MIXED),
    "largest": (lambda y, p: tf.reduce_max(p), Additivity.MIXED),
    "centred": (lambda y, p: tf.reduce_mean((p - tf.reduce_mean(p)) ** 2), Additivity.MIXED),
    "sum of columns": (lambda y, p: tf.reduce_sum(p, axis=0), Additivity.MIXED),
    "compared": (lambda y, p: tf.matmul(p, p, transpose_b=True), Additivity.MIXED),
    "first row": (lambda y, p: p[0], Additivity.MIXED),
    "singular values": (lambda y, p: tf.linalg.svd(p, compute_uv=False), Additivity.MIXED),
    "singular values of a matrix for each row": (
        lambda y, p: tf.linalg.svd(p[:, None], compute_uv=False),
        Additivity.ROWS,
    ),
    "softmax": (lambda y, p: tf.nn.softmax(p), Additivity.ROWS),
    "softmax over the rows": (lambda y, p: tf.nn.softmax(p[:, 0]), Additivity.MIXED),
    "padded columns": (lambda y, p: tf.pad(p, [[0, 0], [0, 1]]), Additivity.ROWS),
    "padded rows": (lambda y, p: tf.pad(p, [[1, 0], [0, 0]]), Additivity.MIXED),
    "norm": (lambda y, p: tf.math.reduce_euclidean_norm(p), Additivity.MIXED),
    "norm for each row": (
        lambda y, p: tf.math.reduce_euclidean_norm(p, axis=1),
        Additivity.ROWS,
    ),
    "spectrum": (lambda y, p: tf.signal.rfft(p[:, 0]), Additivity.MIXED),
    "row and dice": (
        lambda y, p: tf.reduce_mean(SQUARES(y, p), axis=-1) + dice(y, p),
        Additivity.MIXED,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_how_a_function_depends_on_the_rows(name):
    function, expected = CASES[name]
    found, others = judged(function)
    assert (found, others) == (expected, False)


def test_other_tensors_of_the_batch_are_seen():
    found, others = judged(lambda y, p, x: tf.reduce_max(p * x), arguments=3)
    assert (found, others) == (Additivity.MIXED, True)


def judged(function, arguments=2):
    """How a function of y, p (and x) depends on y and p, and whether on others."""
    answers, scale = [], tf.Variable(2.0)

    @tf.function
    def step(y, p, *others):
        predicted = p * scale
        result = function(y, predicted, *others)
        found, others = additivity_of(result, [y, predicted], RowSums((y, p, *others)))
        answers.append((found, bool(others)))
        return 0

    step.get_concrete_function(*[tf.TensorSpec([None, 3], tf.float32)] * arguments)
    return answers[0]
