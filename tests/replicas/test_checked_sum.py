"""Gradients added up, and beside them whether each replica's own were finite."""

import numpy as np
import pytest
import tensorflow as tf
from small_models import on_replicas
from test_reduce_sum import added_up

from phalanx.gradients.branches import rarely
from phalanx.gradients.checked_sum import checked_sum
from phalanx.gradients.finite import FINE, LARGE, NONFINITE

NAMES = ["dense", "none", "half", "rows"]
LARGEST = np.float32(3e38)


def summed(entry, **options):
    """This replica's sum of gradients of every kind; `entry` is one of the dense one's."""
    replica = int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))
    dense = tf.stack([1.0, entry, 2.0])
    half = tf.fill([2], tf.cast(3, tf.float16))
    rows = tf.IndexedSlices(
        tf.reshape(dense[:2], [1, 2]), tf.constant([replica]), tf.constant([9, 2])
    )
    found = checked_sum([dense, None, half, rows], NAMES, replica=replica, replicas=2, **options)
    dense, nothing, half, rows = found.total
    assert nothing is None
    return found.said, found.finite, dense, half, tf.convert_to_tensor(rows)


@pytest.mark.parametrize(
    ("entries", "said", "finite"),
    [
        ((4.0, 5.0), [FINE, FINE], True),
        ((4.0, np.nan), [FINE, NONFINITE], False),
        ((-np.inf, 5.0), [NONFINITE, FINE], False),
        ((np.inf, np.nan), [NONFINITE, NONFINITE], False),
        ((1e30, 5.0), [LARGE, FINE], True),
        ((LARGEST, LARGEST), [LARGE, LARGE], False),
    ],
)
def test_sums_and_what_replicas_say(entries, said, finite, mirrored2):
    column = [tf.constant(entry, tf.float32) for entry in entries]
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.float32(entries[0]) + np.float32(entries[1])
    for result in on_replicas(mirrored2, summed, column):
        told, is_finite, dense, half, rows = (each.numpy() for each in result)
        np.testing.assert_array_equal(told, said)
        assert is_finite == finite
        np.testing.assert_array_equal(dense, [2, total, 4])
        np.testing.assert_array_equal(half, [6, 6])
        np.testing.assert_array_equal(rows[:2], np.float32([[1, entries[0]], [1, entries[1]]]))


def test_a_sum_of_halves_that_overflows(mirrored2):
    def step(i):
        half = [tf.cast(tf.fill([3], i), tf.float16)]
        found = checked_sum(half, ["half"], replica=0, replicas=2)
        return found.said[1], found.finite

    for said, finite in on_replicas(mirrored2, step, [tf.constant(6e4), tf.constant(6e4)]):
        assert (float(said), bool(finite)) == (FINE, False)


def test_who_says_it_himself_is_believed(mirrored2):
    def step(entry, says):
        return summed(entry, saying=says)[:2]

    entries = [tf.constant(np.nan), tf.constant(1.0)]
    says = [tf.constant(FINE), tf.constant(NONFINITE)]
    for said, finite in on_replicas(mirrored2, step, entries, says):
        assert said.numpy().tolist() == [FINE, NONFINITE]
        assert not bool(finite)
    for _, finite in on_replicas(mirrored2, step, entries, says[:1] * 2):
        assert bool(finite)


def test_saying_so_takes_no_all_reduce_of_its_own(mirrored2):
    counted = added_up(mirrored2, summed, [tf.constant(1.0), tf.constant(2.0)])
    dense = [dtype for dtype in counted if dtype.startswith("float")]
    assert sorted(dense) == ["float16"] * 2 + ["float32"] * 4, "one a dtype, and the rows"


def test_one_replica_has_no_sum():
    for entry, finite in ((LARGEST, True), (np.nan, False)):
        found = checked_sum([tf.constant([entry])], ["dense"], replica=0, replicas=1)
        assert bool(found.finite) == finite
        assert found.said.shape == [1]


def test_a_branch_that_is_hardly_ever_taken_is_one_operation():
    variable = tf.Variable(1.0)

    def branch():
        return tf.add_n([i * variable for i in range(20)])

    @tf.function
    def step(wanted):
        return tf.cond(wanted, rarely(branch), lambda: tf.constant(0.0))

    assert float(step(tf.constant(True))) == 190.0
    assert float(step(tf.constant(False))) == 0.0
    assert rarely(branch) is branch, "and eagerly it is what it is"
    with tf.Graph().as_default():
        function = rarely(lambda: tf.constant(1.0)).get_concrete_function()
    assert function.function_def.attr["_noinline"].b, "TensorFlow does not write it out"
