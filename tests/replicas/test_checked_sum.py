"""Gradients added up, whether the total is finite, and whose own were not."""

import numpy as np
import pytest
import tensorflow as tf
from small_models import on_replicas
from test_reduce_sum import added_up

from phalanx.gradients.checked_all_reduce import (
    all_reduce_and_check,
    all_reduce_with_loss_flag,
    cold_branch,
)

NAMES = ["dense", "none", "half", "rows"]
LARGEST = np.float32(3e38)


def passed(entry):
    """A replica's gradients of every kind; `entry` is one of the dense one's."""
    replica = int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))
    dense = tf.stack([1.0, entry, 2.0])
    half = tf.fill([2], tf.cast(3, tf.float16))
    rows = tf.IndexedSlices(
        tf.reshape(dense[:2], [1, 2]), tf.constant([replica]), tf.constant([9, 2])
    )
    return [dense, None, half, rows]


def summed(entry):
    found = all_reduce_and_check(passed(entry), NAMES, replicas=2)
    dense, nothing, half, rows = found.total
    assert nothing is None
    return found.finite, *found.own(), dense, half, tf.convert_to_tensor(rows)


@pytest.mark.parametrize(
    ("entries", "finite", "are_bad", "can_be"),
    [
        ((4.0, 5.0), True, (False, False), (False, False)),
        ((4.0, np.nan), False, (False, True), (False, True)),
        ((-np.inf, 5.0), False, (True, False), (True, False)),
        ((np.inf, np.nan), False, (True, True), (True, True)),
        ((1e30, 5.0), True, (False, False), (False, False)),
        ((LARGEST, LARGEST), False, (False, False), (True, True)),
        ((LARGEST, -LARGEST), True, (False, False), (True, True)),
    ],
)
def test_sums_and_who_is_to_blame(entries, finite, are_bad, can_be, mirrored2):
    column = [tf.constant(entry, tf.float32) for entry in entries]
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.float32(entries[0]) + np.float32(entries[1])
    results = on_replicas(mirrored2, summed, column)
    for replica, result in enumerate(results):
        is_finite, is_bad, can, dense, half, rows = (each.numpy() for each in result)
        assert (is_finite, is_bad, can) == (finite, are_bad[replica], can_be[replica])
        np.testing.assert_array_equal(dense, [2, total, 4])
        np.testing.assert_array_equal(half, [6, 6])
        np.testing.assert_array_equal(rows[:2], np.float32([[1, entries[0]], [1, entries[1]]]))


@pytest.mark.parametrize("kind", [0, 2, 3], ids=["dense", "half", "rows"])
def test_gradients_of_every_kind_are_looked_at(kind, mirrored2):
    def step(factor):
        gradients = passed(4.0)
        one = gradients[kind]
        if isinstance(one, tf.IndexedSlices):
            gradients[kind] = tf.IndexedSlices(one.values * factor, one.indices, one.dense_shape)
        else:
            gradients[kind] = one * tf.cast(factor, one.dtype)
        found = all_reduce_and_check(gradients, NAMES, replicas=2)
        return found.finite, *found.own()

    first, second = on_replicas(mirrored2, step, [tf.constant(1.0), tf.constant(np.nan)])
    assert [bool(each) for each in first] == [False, False, False]
    assert [bool(each) for each in second] == [False, True, True]


def test_a_sum_of_halves_that_overflows(mirrored2):
    def step(i):
        half = [tf.cast(tf.fill([3], i), tf.float16)]
        found = all_reduce_and_check(half, ["half"], replicas=2)
        return found.finite, *found.own()

    for reported in on_replicas(mirrored2, step, [tf.constant(6e4), tf.constant(6e4)]):
        assert [bool(each) for each in reported] == [False, False, True]


def test_a_loss_that_is_not_finite_counts_and_no_gradient(mirrored2):
    def step(entry, loss):
        found = all_reduce_with_loss_flag(passed(entry), NAMES, loss, replicas=2)
        dense, _, half, _ = found.total
        return found.finite, *found.own(), dense[2], half[0]

    entries, losses = (
        [tf.constant(np.nan), tf.constant(1.0)],
        [tf.constant(1.0), tf.constant(-np.inf)],
    )
    first, second = on_replicas(mirrored2, step, entries, losses)
    assert [float(each) for each in first] == [0, 0, 0, 4, 6]
    assert [float(each) for each in second] == [0, 1, 1, 4, 6]
    for finite, *_ in on_replicas(mirrored2, step, entries, losses[:1] * 2):
        assert bool(finite)


def test_a_loss_takes_no_all_reduce_of_its_own(mirrored2):
    def step(entry, loss):
        return all_reduce_with_loss_flag(passed(entry), NAMES, loss, replicas=2).finite

    column = [tf.constant(1.0), tf.constant(2.0)]
    for counted in (added_up(mirrored2, summed, column), added_up(mirrored2, step, column, column)):
        floats = [dtype for dtype in counted if dtype.startswith("float")]
        assert sorted(floats) == ["float16"] * 2 + ["float32"] * 4, "one a dtype, and the rows"


def test_one_replica_has_no_sum():
    for entry, finite in ((LARGEST, True), (np.nan, False)):
        found = all_reduce_and_check([tf.constant([entry])], ["dense"], replicas=1)
        assert bool(found.finite) == finite
        assert [bool(each) for each in found.own()] == [True, True], "who else, if it is not"
        with_loss = all_reduce_with_loss_flag(
            [tf.ones([1])], ["dense"], tf.constant(entry), replicas=1
        )
        assert bool(with_loss.finite) == finite
        assert [bool(each) for each in with_loss.own()] == [not finite] * 2


def test_a_branch_that_is_hardly_ever_taken_is_one_operation():
    variable = tf.Variable(1.0)

    def branch():
        return tf.add_n([i * variable for i in range(20)])

    @tf.function
    def step(wanted):
        return tf.cond(wanted, cold_branch(branch), lambda: tf.constant(0.0))

    assert float(step(tf.constant(True))) == 190.0
    assert float(step(tf.constant(False))) == 0.0
    assert cold_branch(branch) is branch, "and eagerly it is what it is"
    with tf.Graph().as_default():
        function = cold_branch(lambda: tf.constant(1.0)).get_concrete_function()
    assert function.function_def.attr["_noinline"].b, "TensorFlow does not write it out"
