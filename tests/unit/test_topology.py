"""Which rows of a batch are a replica's."""

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.distributed.topology import ReplicaTopology, rows_of, topology_of


def shares(total, replicas):
    return [rows_of(replica, replicas, total) for replica in range(replicas)]


@settings(derandomize=True, deadline=None)
@given(total=st.integers(0, 10**6), replicas=st.integers(1, 257))
def test_replicas_are_neighbours_that_share_every_row_once(total, replicas):
    end = 0
    for start, count in shares(total, replicas):
        assert start == end
        assert count >= 0
        end = start + count
    assert end == total


@settings(derandomize=True, deadline=None)
@given(total=st.integers(0, 10**6), replicas=st.integers(1, 257))
def test_counts_differ_by_one_at_most_and_the_first_have_more(total, replicas):
    counts = [count for _, count in shares(total, replicas)]
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("replicas", range(1, 8))
def test_all_small_batches(replicas):
    for total in range(40):
        rows = [start + i for start, count in shares(total, replicas) for i in range(count)]
        assert rows == list(range(total))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
def test_tensors_give_what_integers_give(replicas, dtype):
    for total in range(12):
        for replica in range(replicas):
            start, count = rows_of(replica, replicas, tf.constant(total, dtype))
            assert start.dtype == count.dtype == dtype
            assert (int(start), int(count)) == rows_of(replica, replicas, total)


def test_the_chief_runs_replica_0():
    assert ReplicaTopology(first=0, local=2, total=4).is_chief
    assert not ReplicaTopology(first=2, local=2, total=4).is_chief


def test_a_process_has_peers_where_others_run_replicas():
    assert not ReplicaTopology().has_peers
    assert not ReplicaTopology(local=3, total=3).has_peers
    assert ReplicaTopology(local=2, total=4).has_peers


def test_the_default_strategy_is_one_replica():
    assert topology_of(tf.distribute.get_strategy()) == ReplicaTopology(first=0, local=1, total=1)
