"""Batches whose tensors have unlike numbers of rows: which are divided, and what replicas get."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from phalanx.data.adapt import make_batch_source
from phalanx.data.iterator_position import DataPosition
from phalanx.data.iterator_state import read_iterator
from phalanx.data.undivided import divide, is_undivided, rows_of_batches
from phalanx.distributed.topology import ReplicaTopology


def of_batches(size, count=12):
    return tf.data.Dataset.from_tensor_slices(np.zeros((count, 2), "float32")).batch(size)


PIPELINES = {
    "batched": (lambda: of_batches(4).repeat().prefetch(1), "equal"),
    "mapped by row": (lambda: of_batches(4).map(lambda x: (x, x > 0)), "equal"),
    "mapped": (lambda: of_batches(4).map(lambda x: (tf.repeat(x, 2, axis=0), x)), "unknown"),
    "zipped": (lambda: tf.data.Dataset.zip((of_batches(4), of_batches(2))).prefetch(1), "zipped"),
    "zipped and joined": (
        lambda: tf.data.Dataset.zip(of_batches(4), of_batches(2)).map(
            lambda a, b: (tf.concat([a, b], 0), b)
        ),
        "unknown",
    ),
    "no batches": (lambda: tf.data.Dataset.from_tensors(np.zeros((4, 2))), "unknown"),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_what_a_pipeline_says(name):
    make, expected = PIPELINES[name]
    assert rows_of_batches(make()) == expected


def batch(*rows):
    return tuple(tf.reshape(tf.range(2 * n), (n, 2)) for n in rows)


def found_for(rows, replicas, known):
    """What `is_undivided` says of a batch, whether or not its rows are known to the graph."""
    specs = [tf.TensorSpec([None, 2], tf.int32) for _ in rows]
    traced = tf.function(
        lambda *data: tf.convert_to_tensor(is_undivided(data, replicas, known)), specs
    )
    stated = is_undivided(batch(*rows), replicas, known)
    assert stated in (True, False)
    assert bool(traced(*batch(*rows))) == stated
    return stated


@pytest.mark.parametrize(
    ("rows", "replicas", "known", "expected"),
    [
        ((7, 7, 7), 2, "unknown", False),
        ((12, 4), 1, "unknown", False),
        ((12, 4), 2, "unknown", True),
        ((12, 4), 2, "zipped", False),
        ((12, 4), 3, "zipped", True),
        ((9, 3), 2, "zipped", True),
        ((5,), 2, "unknown", False),
    ],
)
def test_which_batches_are_divided(rows, replicas, known, expected):
    assert found_for(rows, replicas, known) is expected


@given(
    rows=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    replicas=st.integers(1, 4),
    undivided=st.booleans(),
    traced=st.booleans(),
)
def test_replicas_together_have_each_row_once(rows, replicas, undivided, traced):
    data = batch(*rows)
    flag = tf.constant(undivided) if traced else undivided
    counts, parts = [], []
    for replica in range(replicas):
        topology = ReplicaTopology(first=replica, local=1, total=replicas)
        total, ((count, own),) = divide(data, topology, undivided=flag)
        assert int(total) == rows[0]
        assert all(len(one) for one in own), "layers need not accept empty batches"
        counts.append(int(count))
        parts.append(own)
    assert sum(counts) == rows[0]
    if undivided:
        assert counts[1:] == [0] * (replicas - 1)
        for own in parts:  # all of it stands in
            assert all((a.numpy() == b.numpy()).all() for a, b in zip(own, data, strict=True))
    else:
        held = [own[0][:count] for own, count in zip(parts, counts, strict=True)]
        assert (tf.concat(held, 0).numpy() == data[0].numpy()).all()


def test_a_pass_continues_where_it_was_saved():
    """Also the part of the pipeline that notes which batch is the first of a pass."""

    def source():
        tf.random.set_seed(11)  # as in a process that has just started
        pairs = tf.data.Dataset.range(24).shuffle(24).batch(4).map(lambda n: (n, n[:2]))
        return make_batch_source(pairs, topology=ReplicaTopology(first=0, local=1, total=2), seed=0)

    first = source()
    assert first.may_be_undivided
    iterator = first.open(0)
    for _ in range(2):
        next(iterator)
    state = read_iterator(iterator)
    position = DataPosition(batch=2, trained=2, passes=1, taken=2, learned=None, seed=None)
    expected = [parts[0][1][0].numpy().tolist() for _, parts in iterator]
    found = source().reopen(position, state)
    assert [parts[0][1][0].numpy().tolist() for _, parts in found] == expected
    assert len(expected) == 4
