"""Any number of replicas sees one sequence of global batches, each sample once a pass."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.data.adapt import make_batch_source
from phalanx.distributed.topology import ReplicaTopology

few = settings(derandomize=True, deadline=None, max_examples=6)


def seen(source, batches):
    """For each batch and local replica, (total of the batch, the ids it holds)."""
    iterator = source.open(0)
    result = []
    for _ in range(batches):
        total, parts = next(iterator)
        result.append([(int(total), data[0].numpy()[: int(n)].tolist()) for n, data in parts])
    return result


def ids_by_batch(n, replicas, *, local, passes=1, **options):
    """The global batches, put together from the shares of `replicas` in several processes."""
    workers = []
    for first in range(0, replicas, local):
        topology = ReplicaTopology(first=first, local=local, total=replicas)
        source = make_batch_source(
            np.arange(n), np.zeros(n), topology=topology, seed=options.pop("seed", 5), **options
        )
        workers.append(seen(source, passes * source.num_batches))
    batches = []
    for shares in zip(*workers, strict=True):
        parts = [part for share in shares for part in share]
        assert {total for total, _ in parts} == {sum(len(ids) for _, ids in parts)}
        counts = [len(ids) for _, ids in parts]
        assert max(counts) - min(counts) <= 1
        batches.append([i for _, ids in parts for i in ids])
    return batches


@few
@given(
    n=st.integers(1, 30),
    batch_size=st.integers(1, 12),
    replicas=st.integers(2, 4),
    shuffle=st.sampled_from([True, False, "batch"]),
)
def test_replicas_share_one_sequence(n, batch_size, replicas, shuffle):
    options = {"batch_size": batch_size, "shuffle": shuffle, "passes": 2}
    one = ids_by_batch(n, 1, local=1, **options)
    assert ids_by_batch(n, replicas, local=1, **options) == one
    assert ids_by_batch(n, replicas, local=replicas, **options) == one
    per_pass = len(one) // 2
    for batches in (one[:per_pass], one[per_pass:]):
        assert sorted(i for batch in batches for i in batch) == list(range(n))
        assert [len(b) for b in batches] == [
            min(batch_size, n - first) for first in range(0, n, batch_size)
        ]


def test_without_shuffling_samples_come_in_order():
    assert ids_by_batch(7, 2, local=1, batch_size=3, shuffle=False) == [[0, 1, 2], [3, 4, 5], [6]]


def test_every_pass_has_its_own_order_and_every_seed_too():
    options = {"batch_size": 8, "shuffle": True}
    passes = ids_by_batch(64, 1, local=1, passes=3, **options)
    orders = [list(itertools.chain(*passes[k : k + 8])) for k in (0, 8, 16)]
    orders.append(list(itertools.chain(*ids_by_batch(64, 1, local=1, seed=6, **options))))
    assert len({tuple(order) for order in orders}) == 4
    assert all(order != sorted(order) for order in orders)


def test_shuffling_in_batches_keeps_the_batches():
    batches = ids_by_batch(20, 2, local=1, batch_size=8, shuffle="batch", passes=2)
    assert [sorted(b) for b in batches] == [
        list(range(0, 8)), list(range(8, 16)), list(range(16, 20)),
    ] * 2  # fmt: skip
    assert batches[:3] != batches[3:]


def test_a_position_is_enough_to_continue_from():
    source = make_batch_source(
        np.arange(10), np.zeros(10), topology=ReplicaTopology(), seed=5, batch_size=4, shuffle=True
    )
    whole = seen(source, 9)
    iterator = source.open(5)
    total, ((count, data),) = next(iterator)
    assert [(int(total), data[0].numpy()[: int(count)].tolist())] == whole[5]


@few
@given(n=st.integers(1, 20), batch_size=st.integers(1, 9), replicas=st.integers(2, 4))
@pytest.mark.parametrize("dropped", [False, pytest.param(True, marks=pytest.mark.full)])
def test_batches_of_a_dataset_are_cut_and_nothing_is_lost(n, batch_size, replicas, dropped):
    expected = [list(range(b, min(b + batch_size, n))) for b in range(0, n, batch_size)]
    if dropped:
        expected = [batch for batch in expected if len(batch) == batch_size]
    dataset = (
        tf.data.Dataset.range(n).map(lambda i: (i, i)).batch(batch_size, drop_remainder=dropped)
    )
    shares = []
    for first in range(replicas):
        topology = ReplicaTopology(first=first, local=1, total=replicas)
        source = make_batch_source(dataset, topology=topology, seed=0)
        assert source.num_batches == len(expected)
        shares.append(seen(source, len(expected)))
    for batch, parts in zip(expected, zip(*shares, strict=True), strict=True):
        assert [i for ((_, ids),) in parts for i in ids] == batch
        assert {total for ((total, _),) in parts} == {len(batch)}


def test_sparse_and_ragged_rows_are_cut():
    dense = np.eye(5, dtype="float32")
    ragged = tf.ragged.constant([[1], [2, 3], [], [4], [5, 6]])
    dataset = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(dense), ragged)).batch(5)
    rows = []
    for first in range(2):
        topology = ReplicaTopology(first=first, local=1, total=2)
        _, ((count, (sparse, values)),) = next(
            make_batch_source(dataset, topology=topology, seed=0).open(0)
        )
        assert int(count) == 3 - first
        rows.append((tf.sparse.to_dense(sparse).numpy(), values.to_list()))
    assert (np.concatenate([rows[0][0], rows[1][0]]) == dense).all()
    assert rows[0][1] + rows[1][1] == ragged.to_list()


def test_a_replica_without_samples_gets_a_row_that_is_a_stand_in():
    topology = ReplicaTopology(first=2, local=1, total=3)
    source = make_batch_source(np.arange(2), np.zeros(2), topology=topology, seed=0, batch_size=4)
    total, ((count, data),) = next(source.open(0))
    assert (int(total), int(count)) == (2, 0)
    assert data[0].shape == (1,)
    assert source.may_be_empty
