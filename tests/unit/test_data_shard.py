"""`phalanx.data.shard`: equally many elements for each worker, none of them twice."""

import pytest
import tensorflow as tf

import phalanx
from phalanx.distributed.topology import ReplicaTopology


@pytest.fixture
def on(monkeypatch):
    """What each of several workers is given of a dataset."""

    def shards(dataset, workers):
        found = []
        for rank in range(workers):
            topology = ReplicaTopology(first=rank, local=1, total=workers)
            monkeypatch.setattr(
                "phalanx.data.sharding.topology_of", lambda _, topology=topology: topology
            )
            found.append(phalanx.data.shard(dataset))
        return found

    return shards


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("elements", [0, 1, 6, 7, 11])
@pytest.mark.parametrize("known", [True, False])
def test_every_worker_gets_equally_many(on, workers, elements, known):
    dataset = tf.data.Dataset.range(elements)
    dataset = dataset if known else dataset.filter(lambda _: True)
    found = [list(each.as_numpy_iterator()) for each in on(dataset, workers)]
    rounds = elements // workers
    assert found == [list(range(rank, rounds * workers, workers)) for rank in range(workers)]


def test_elements_keep_their_structure(on):
    dataset = tf.data.Dataset.range(5).map(lambda i: ({"a": i, "b": (i, i)}, i))
    for unknown in (dataset.filter(lambda *_: True), dataset.map(lambda *e: e[0]).filter(bool_of)):
        for each in on(unknown, 2):
            assert each.element_spec == unknown.element_spec
            assert len(list(each)) == 2


def test_a_tuple_of_one_stays_one(on):
    dataset = tf.data.Dataset.from_tensor_slices(([1, 2, 3, 4],)).filter(bool_of)
    first, second = on(dataset, 2)
    assert first.element_spec == dataset.element_spec
    assert list(first.as_numpy_iterator()) == [(1,), (3,)]
    assert list(second.as_numpy_iterator()) == [(2,), (4,)]


def bool_of(_):
    return True


def test_an_endless_dataset_is_shared_out_too(on):
    first, second = on(tf.data.Dataset.range(3).repeat(), 2)
    assert list(first.take(4).as_numpy_iterator()) == [0, 2, 1, 0]
    assert list(second.take(4).as_numpy_iterator()) == [1, 0, 2, 1]


def test_one_worker_gets_the_dataset_itself():
    dataset = tf.data.Dataset.range(3)
    assert phalanx.data.shard(dataset) is dataset
