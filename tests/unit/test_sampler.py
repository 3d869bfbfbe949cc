"""One sequence of global batches for any number of workers, nothing twice, nothing missing."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.data.grouped_sampler import BucketedOrder, WeightedMixSampler, quotas
from phalanx.data.sampler import ShuffleSampler
from phalanx.distributed.topology import rows_of

few = settings(derandomize=True, deadline=None, max_examples=6)


def joined(lists):
    return list(itertools.chain.from_iterable(lists))


def batch_of(order, epoch, batch, workers=1, seed=5):
    """The rows of each worker's share of a global batch."""
    number = tf.constant(batch, tf.int64)
    epoch = tf.constant(epoch, tf.int64)
    total = int(order.total(seed, epoch, number))
    shares = []
    for worker in range(workers):
        start, count = rows_of(worker, workers, total)
        within = tf.range(start, start + count, dtype=tf.int64)
        shares.append(order.rows(seed, epoch, number, within).numpy().tolist() if count else [])
    return shares


def epochs_of(order, workers, epochs=2):
    """For each epoch its global batches, each put together from the workers' shares."""
    return [
        [joined(batch_of(order, e, b, workers)) for b in range(order.num_batches)]
        for e in range(epochs)
    ]


def assert_shared(order):
    """The sequence is the same for 1, 2, 3 and 4 workers; give it."""
    one = epochs_of(order, 1)
    for workers in (2, 3, 4):
        assert epochs_of(order, workers) == one
    for epoch in one:
        assert order.smallest == min(map(len, epoch))
        assert order.num_samples == sum(map(len, epoch))
    return one


ORDERS = {
    "plain": ShuffleSampler(7, 4, True),
    "mixed": WeightedMixSampler([np.arange(2), np.arange(2, 7)], [1, 1], 4),
    "bucketed": BucketedOrder([np.arange(3), np.arange(3, 5)], 2, shuffle=True),
}


@pytest.mark.parametrize("name", ORDERS)
def test_the_sequence_is_one_for_any_number_of_workers(name):
    first, second = assert_shared(ORDERS[name])
    assert first != second
    if name != "mixed":
        assert sorted(joined(first)) == sorted(joined(second)) == list(range(len(joined(first))))


@pytest.mark.full
@few
@given(
    samples=st.integers(1, 23),
    size=st.integers(1, 9),
    shuffle=st.sampled_from([True, False, "batch"]),
)
def test_each_sample_comes_once_an_epoch(samples, size, shuffle):
    for epoch in assert_shared(ShuffleSampler(samples, size, shuffle)):
        assert sorted(joined(epoch)) == list(range(samples))
        assert [len(batch) for batch in epoch[:-1]] == [size] * (len(epoch) - 1)


@few
@given(samples=st.integers(1, 23), size=st.integers(1, 9))
def test_a_dropped_remainder_leaves_full_batches_only(samples, size):
    order = ShuffleSampler(samples, size, True, drop_remainder=True)
    if order.num_batches:
        for epoch in assert_shared(order):
            assert [len(batch) for batch in epoch] == [size] * (samples // size)
            assert len(set(joined(epoch))) == samples // size * size


def test_epochs_and_seeds_have_orders_of_their_own():
    order = ShuffleSampler(50, 50, True)
    orders = [tuple(batch_of(order, e, 0, seed=s)[0]) for e in range(2) for s in (1, 2)]
    assert len(set(orders)) == 4


def test_a_mix_changes_places_and_samples_from_epoch_to_epoch():
    epochs = epochs_of(WeightedMixSampler([np.arange(20), np.arange(20, 40)], [1, 1], 40), 1)
    (first,), (second,) = epochs
    assert [row < 20 for row in first] != [row < 20 for row in second]
    assert [row for row in first if row < 20] != [row for row in second if row < 20]


def test_a_mix_continues_with_a_group_where_the_epoch_before_stopped():
    order = WeightedMixSampler([np.arange(4), np.arange(100, 106)], [1, 1], 10)
    first, second = (set(joined(epoch)) for epoch in epochs_of(order, 1))
    later = set(range(100, 106))
    assert len(first & later) == 5  # of each epoch's ten, half
    assert later <= first | second


def test_buckets_change_places_and_samples_from_epoch_to_epoch():
    order = BucketedOrder([np.arange(20), np.arange(20, 40)], 5, shuffle=True)
    first, second = epochs_of(order, 1)
    assert [batch[0] < 20 for batch in first] != [batch[0] < 20 for batch in second]
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}


@pytest.mark.full
@few
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    size=st.integers(1, 7),
    weights=st.lists(st.integers(1, 5), min_size=3, max_size=3),
)
def test_a_mix_takes_each_groups_share_in_complete_passes(sizes, size, weights):
    firsts = np.cumsum(sizes) - sizes
    groups = [np.arange(a, a + n) for a, n in zip(firsts, sizes, strict=True)]
    weights = weights[: len(sizes)]
    epochs = assert_shared(WeightedMixSampler(groups, weights, size))
    flat = [joined(epoch) for epoch in epochs]
    for group, share in zip(groups, quotas(weights, sum(sizes)), strict=True):
        taken = [sum(row in group for row in epoch) for epoch in flat]
        assert taken == [share] * len(epochs)
        counts = [flat[0].count(row) + flat[1].count(row) for row in group]
        assert max(counts) - min(counts) <= 1


def test_shares_are_complete_and_add_up():
    assert quotas([1, 1, 1], 10).tolist() == [4, 3, 3]
    assert quotas([0, 1], 7).tolist() == [0, 7]
    assert quotas([0.5, 0.25, 0.25], 8).tolist() == [4, 2, 2]


@pytest.mark.full
@few
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=20),
    size=st.integers(1, 5),
    shuffle=st.booleans(),
)
def test_a_bucketed_batch_holds_samples_of_one_bucket(lengths, size, shuffle):
    lengths = np.array(lengths)
    buckets = [rows for n in (1, 2, 3) if len(rows := np.flatnonzero(-(-lengths // 2) == n))]
    for epoch in assert_shared(BucketedOrder(buckets, size, shuffle=shuffle)):
        assert sorted(joined(epoch)) == list(range(len(lengths)))
        for batch in epoch:
            assert len(set(-(-lengths[batch] // 2))) == 1


@pytest.mark.parametrize("dropped", [True, False])
def test_buckets_drop_what_fills_no_batch(dropped):
    buckets = [np.arange(5), np.arange(5, 6)]
    order = BucketedOrder(buckets, 2, shuffle=True, drop_remainder=dropped)
    assert (order.num_batches, order.num_samples) == ((2, 4) if dropped else (4, 6))
    assert_shared(order)
