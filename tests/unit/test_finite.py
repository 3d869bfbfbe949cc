"""Whether gradients and their sum over replicas are finite, from what each replica says."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from phalanx.gradients.finite import FINE, LARGE, NONFINITE, is_finite, said_of

LARGEST = float(np.finfo("float32").max)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (0.0, FINE),
        (-1e19, FINE),
        (1e20, LARGE),
        (LARGEST, LARGE),
        (np.inf, NONFINITE),
        (-np.inf, NONFINITE),
        (np.nan, NONFINITE),
    ],
)
def test_what_a_replica_says_of_one_entry(entry, said):
    gradients = [tf.ones([3]), None, tf.constant([1.0, entry, -1.0])]
    assert float(said_of(gradients)) == said


def test_many_squares_that_overflow_together_are_large():
    assert float(said_of([tf.fill([100], 1e19)] * 10)) == LARGE


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes(dtype):
    fine = tf.constant([3e4] * 100, dtype)
    assert float(said_of([fine])) == FINE
    assert float(said_of([tf.ones([2]), tf.constant([1.0, np.inf], dtype)])) == NONFINITE


def test_what_float64_alone_can_hold_is_finite():
    assert float(said_of([tf.constant([1e300], tf.float64)])) == LARGE


def test_rows_of_sparse_gradients_count():
    rows = tf.IndexedSlices(tf.constant([[1.0, np.nan]]), tf.constant([5]), tf.constant([9, 2]))
    assert float(said_of([rows])) == NONFINITE


def test_no_gradients_at_all_are_fine():
    assert float(said_of([None, None])) == FINE
    assert bool(is_finite([None], tf.constant([FINE, FINE])))


@pytest.mark.parametrize("total", [[], [None], [tf.ones]])
def test_one_replica_is_believed_and_so_are_all_where_there_is_no_total(total):
    total = [None if each is None else each([2]) for each in total]
    assert bool(is_finite(total, tf.constant([LARGE])))
    assert not bool(is_finite(total, tf.constant([NONFINITE])))
    assert not bool(is_finite([], tf.constant([FINE, NONFINITE])))


entries = st.floats(width=32) | st.sampled_from([LARGEST, -LARGEST, 1e20, -1e20, 1e19, 2e19])


@given(st.lists(st.lists(entries, min_size=2, max_size=2), min_size=1, max_size=4))
def test_the_total_is_found_finite_exactly_where_it_is(replicas):
    own = np.array(replicas, "float32")
    said = tf.stack([said_of([tf.constant(each)]) for each in own])
    with np.errstate(over="ignore", invalid="ignore"):
        total = own.sum(axis=0, dtype="float32")
    assert bool(is_finite([tf.constant(total)], said)) == bool(np.isfinite(total).all())
    assert [bool(each) for each in tf.floor(said) == NONFINITE] == [
        not np.isfinite(each).all() for each in own
    ]


def test_a_sum_of_float16_that_overflows_though_nobody_said_so():
    own = tf.constant([6e4], tf.float16)
    said = tf.stack([said_of([own])] * 2)
    assert not np.any(said)
    assert not bool(is_finite([own + own], said))
    assert bool(is_finite([own], said))
