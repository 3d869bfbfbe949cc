"""Which scalars of a graph are sums over the rows of a batch, and which are divided by a count."""

import functools

import pytest
import tensorflow as tf

from phalanx.gradients.row_sums import RowSums

ROWS, WIDTH = 8, 5


def losses(x):
    return tf.reduce_sum(x**2, axis=1)


def selected(x, m):
    return losses(tf.boolean_mask(x, m > 0))


SUMS = {
    "a sum": lambda x: tf.reduce_sum(losses(x)),
    "a sum of all entries": lambda x: tf.reduce_sum(x**2),
    "by the global batch": lambda x: tf.reduce_sum(losses(x)) / 32,
    "by twice this part's rows, not its entries": lambda x: tf.reduce_sum(x**2) / (2 * ROWS),
    "by a feature's size": lambda x: tf.reduce_sum(losses(x)) / 7.0,
    "half a sum of squares": lambda x: tf.nn.l2_loss(x),
    "a mean of sums by column": lambda x: tf.reduce_mean(tf.reduce_sum(x**2, axis=0)),
    "a sum of sums by column": lambda x: tf.reduce_sum(tf.reduce_sum(x**2, axis=0)),
    "scaled": lambda x: 4.0 * tf.reduce_sum(losses(x)),
}
MEANS = {
    "a mean": lambda x: tf.reduce_mean(losses(x)),
    "by the rows": lambda x: tf.reduce_sum(losses(x)) / tf.cast(tf.shape(x)[0], tf.float32),
    "by the size": lambda x: tf.reduce_sum(x**2) / tf.cast(tf.size(x), tf.float32),
    "by the rows of what follows": lambda x: (
        tf.reduce_sum(losses(x)) / tf.cast(tf.shape(losses(x))[0], tf.float32)
    ),
    "twice, by the rows": lambda x: (
        2 * tf.reduce_sum(losses(x)) / tf.cast(tf.shape(x)[0], tf.float32)
    ),
    "half a sum of squares, by the rows": lambda x: (
        tf.nn.l2_loss(x) / tf.cast(tf.shape(x)[0], tf.float32)
    ),
    "half a sum of squares of means": lambda x: tf.nn.l2_loss(tf.reduce_mean(x, axis=0)),
    "a mean of means by column": lambda x: tf.reduce_mean(tf.reduce_mean(x, axis=0)),
    "a mean of sums of pairs": lambda x: tf.reduce_mean(
        tf.reduce_sum(tf.matmul(x, x, transpose_b=True), axis=0)
    ),
    "a mean of sums by row": lambda x: tf.reduce_mean(tf.reduce_sum(x, axis=1)),
    "of a kernel, halved": lambda x: tf.nn.l2_loss(tf.ones((WIDTH, 3))),
    "of a kernel": lambda x: tf.reduce_sum(tf.ones((WIDTH, 3)) ** 2),
}
COUNTED = {
    "by a mask": lambda x, m: tf.reduce_sum(losses(x) * m) / tf.reduce_sum(m),
    "by a mask, at least one": lambda x, m: (
        tf.reduce_sum(losses(x) * m) / tf.maximum(tf.reduce_sum(m), 1.0)
    ),
    "by a mask and a little": lambda x, m: tf.reduce_sum(losses(x) * m) / (tf.reduce_sum(m) + 1e-7),
    "times a factor": lambda x, m: 3.0 * tf.reduce_sum(losses(x) * m) / tf.reduce_sum(m),
    "by a count": lambda x, m: (
        tf.reduce_sum(losses(x) * m) / tf.cast(tf.math.count_nonzero(m), tf.float32)
    ),
    "a sum of what a mask selects, by its size": lambda x, m: (
        tf.reduce_sum(selected(x, m)) / tf.cast(tf.size(selected(x, m)), tf.float32)
    ),
    "a sum of what a mask selects, by its rows": lambda x, m: (
        tf.reduce_sum(selected(x, m)) / tf.cast(tf.shape(selected(x, m))[0], tf.float32)
    ),
    "the mean of what a mask selects": lambda x, m: tf.reduce_mean(selected(x, m)),
    "of rows found by a mask": lambda x, m: (
        2.0 * tf.reduce_mean(losses(tf.gather(x, tf.where(m > 0)[:, 0])))
    ),
    "of entries found by a mask": lambda x, m: tf.reduce_mean(
        tf.gather_nd(x, tf.where(x > 0)) ** 2
    ),
}


OF_FEATURES = {
    "of means by column": lambda x: tf.reduce_sum(tf.reduce_mean(x, axis=0) ** 2),
    "of a layer's means": lambda x: tf.reduce_sum(
        tf.reduce_mean(tf.nn.relu(x @ kernel() + kernel()[0]), axis=0)
    ),
    "of correlations": lambda x: tf.reduce_sum(
        tf.matmul(x, x, transpose_a=True) ** 2 * (1 - tf.eye(2 * ROWS))
    ),
    "of a turned batch's means": lambda x: tf.reduce_sum(tf.reduce_mean(tf.transpose(x), axis=1)),
    "of a kernel that the batch scales": lambda x: tf.reduce_sum(kernel() * tf.reduce_mean(x)),
}
"""Sums along an axis that has as many entries as the batch has rows, or a multiple of that."""


@functools.cache
def kernel():
    with tf.init_scope():
        return tf.Variable(tf.ones((2 * ROWS, 2 * ROWS)))


def terms(function, rows, with_mask=False, width=WIDTH):
    found = []

    def step(x, m):
        sums = RowSums((x, m))
        found.extend(sums.terms(function(x, m) if with_mask else function(x)))
        return x

    tf.function(step).get_concrete_function(
        tf.TensorSpec((rows, width), tf.float32), tf.TensorSpec((rows,), tf.float32)
    )
    return found


both_kinds = pytest.mark.parametrize("rows", [None, ROWS], ids=["unknown", "static"])


@both_kinds
@pytest.mark.parametrize("name", SUMS)
def test_sums(name, rows):
    (term,) = terms(SUMS[name], rows)
    assert term.is_sum
    assert term.count is None


@both_kinds
@pytest.mark.parametrize("name", MEANS)
def test_means(name, rows):
    assert terms(MEANS[name], rows) == []


@both_kinds
@pytest.mark.parametrize("name", OF_FEATURES)
def test_sums_over_as_many_features_as_rows(name, rows):
    assert terms(OF_FEATURES[name], rows, width=2 * ROWS) == []


@both_kinds
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_a_batch_with_as_many_features_as_rows(name, rows):
    (term,) = terms(SUMS[name], rows, width=ROWS)
    assert term.is_sum


def test_a_constant_that_counts_this_parts_entries_makes_a_mean():
    assert terms(lambda x: tf.reduce_sum(x**2) / (ROWS * WIDTH), ROWS) == []
    assert terms(lambda x: tf.reduce_sum(x**2) * (1 / (ROWS * WIDTH)), ROWS) == []
    assert terms(lambda x: 0.1 * tf.reduce_sum(losses(x)) / (ROWS * WIDTH), ROWS) == []
    assert terms(lambda x: 2 * tf.nn.l2_loss(x) / (ROWS * WIDTH), ROWS) == []


def test_the_factor_of_a_divergence_is_not_the_number_of_two_rows():
    (term,) = terms(lambda x: -0.5 * tf.reduce_sum(losses(x)), 2)
    assert term.is_sum
    assert terms(lambda x: 0.5 * tf.reduce_sum(losses(x)), 2) == []


@both_kinds
@pytest.mark.parametrize("name", COUNTED)
def test_sums_by_a_count(name, rows):
    (term,) = terms(COUNTED[name], rows, with_mask=True)
    assert term.is_sum
    assert term.count is not None


@both_kinds
def test_a_sum_has_its_terms(rows):
    def loss(x, m):
        counted = tf.reduce_sum(losses(x) * m) / tf.reduce_sum(m)
        return 2.0 * (counted + tf.reduce_mean(x)) - tf.reduce_sum(x)

    found = terms(loss, rows, with_mask=True)
    assert [(t.is_sum, t.count is not None) for t in found] == [
        (True, True), (False, False), (True, False),
    ]  # fmt: skip


def test_a_count_that_a_variable_decides_is_none():
    variable = tf.Variable(tf.ones(1))
    found = terms(lambda x: tf.reduce_sum(x) / tf.reduce_sum(x * variable), None)
    assert all(term.count is None for term in found)


@pytest.mark.parametrize("rows", [ROWS, None])
def test_a_length_to_which_samples_are_padded_does_not_depend_on_the_rows(rows):
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, (rows, None))
        words = tf.compat.v1.placeholder(tf.float32, (rows, None, 4))
        found = RowSums([x, words])
        assert not found.depends_on_batch(tf.range(tf.shape(x)[-1]))
        assert not found.depends_on_batch(tf.range(tf.shape(tf.cast(x, tf.int32))[1]))
        hidden = tf.tensordot(tf.nn.relu(words[:, :-1]), tf.ones((4, 3)), 1)
        assert not found.depends_on_batch(tf.range(tf.shape(hidden)[1]))
        assert found.depends_on_batch(tf.range(tf.shape(hidden)[0]))
        assert found.depends_on_batch(tf.range(tf.shape(tf.reshape(words, (1, -1, 4)))[1]))
        assert found.depends_on_batch(tf.range(tf.shape(tf.transpose(words, (1, 0, 2)))[1]))
        longest = tf.cast(tf.reduce_max(x), tf.int32)
        assert found.depends_on_batch(tf.range(tf.shape(x[:, :longest])[1]))
        chosen = tf.boolean_mask(x, x[0] > 0, axis=1)
        assert found.depends_on_batch(tf.range(tf.shape(chosen)[1]))
        assert found.depends_on_batch(tf.range(tf.shape(x)[-2]))
        assert found.depends_on_batch(tf.shape(tf.transpose(x))[1])
