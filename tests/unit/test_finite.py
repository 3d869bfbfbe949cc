"""Whether gradients are finite, and whether their sum over replicas can overflow."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from phalanx.gradients.checked_all_reduce import are_finite, can_overflow, each_is_finite

LARGEST = float(np.finfo("float32").max)
DTYPES = ["float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("entry", [0.0, -1e19, 1e20, LARGEST, -LARGEST, np.inf, -np.inf, np.nan])
def test_one_entry_decides(entry):
    gradients = [tf.ones([3]), None, tf.constant([1.0, entry, -1.0])]
    assert bool(are_finite(gradients)) == np.isfinite(entry)
    assert bool(each_is_finite(gradients)) == np.isfinite(entry)


def test_many_squares_that_overflow_together_are_finite():
    assert bool(are_finite([tf.fill([100], 1e19)] * 10))


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype):
    assert bool(are_finite([tf.constant([3e4] * 100, dtype)]))
    assert not bool(are_finite([tf.ones([2]), tf.constant([1.0, np.inf], dtype)]))


def test_what_float64_alone_can_hold_is_finite():
    assert bool(are_finite([tf.constant([1e300], tf.float64)]))


def test_rows_of_sparse_gradients_count():
    rows = tf.IndexedSlices(tf.constant([[1.0, np.nan]]), tf.constant([5]), tf.constant([9, 2]))
    assert not bool(are_finite([rows]))
    assert bool(can_overflow([rows], 2))


def test_no_gradients_at_all_are_fine():
    assert bool(are_finite([None, None]))
    assert bool(each_is_finite([None]))
    assert not bool(can_overflow([None], 2))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_each_replica_may_pass(dtype):
    most = float(tf.as_dtype(dtype).max) / 4
    entry = tf.constant([1.0, most], dtype)
    assert not bool(can_overflow([entry], 2))
    assert bool(can_overflow([entry], 3))
    assert bool(can_overflow([tf.ones([2]), -entry], 3))


entries = st.floats(width=32) | st.sampled_from([LARGEST, -LARGEST, 1e20, -1e20, 1e19, 2e19])


@given(st.lists(st.lists(entries, min_size=2, max_size=2), min_size=1, max_size=4))
def test_a_total_is_finite_or_somebody_is_to_blame(replicas):
    own = np.array(replicas, "float32")
    with np.errstate(over="ignore", invalid="ignore"):
        total = own.sum(axis=0, dtype="float32")
    is_finite = bool(np.isfinite(total).all())
    assert bool(are_finite([tf.constant(total)])) == is_finite
    to_blame = [bool(can_overflow([tf.constant(each)], len(own))) for each in own]
    assert is_finite or any(to_blame)
    for each, blamed in zip(own, to_blame, strict=True):
        assert blamed or np.isfinite(each).all()
