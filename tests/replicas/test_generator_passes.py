"""A Python generator as the global batches of several calls, on one worker of some."""

import itertools

import numpy as np
import pytest

from phalanx.data.adapt import make_batch_source
from phalanx.data.iterator_position import DataPosition
from phalanx.distributed.topology import ReplicaTopology

ALONE = ReplicaTopology()
SECOND_OF_TWO = ReplicaTopology(first=1, total=2)
TOPOLOGIES = pytest.mark.parametrize("topology", [ALONE, SECOND_OF_TWO], ids=["alone", "of two"])


def batches():
    for number in itertools.count():
        yield np.full((4, 1), number, "float32"), np.zeros((4, 1), "float32")


def opened(generator, topology, **options):
    return make_batch_source(generator, topology=topology, seed=0, **options)


def numbers(iterator, count):
    """The batch's number of each of `count` elements."""
    found = []
    for _, parts in itertools.islice(iterator, count):
        [(_, (x, _))] = parts
        found.append(int(x[0, 0]))
    return found


@TOPOLOGIES
def test_each_pass_begins_with_the_first_batches_and_goes_on_where_the_last_one_was_left(topology):
    generator = batches()
    source = opened(generator, topology)
    for expected in ([0, 1, 2], [0, 1, 3, 4], [0], [0, 1, 5]):
        assert numbers(source.open(0), len(expected)) == expected
        source.took(len(expected))
    source.close()
    following = opened(generator, topology)
    assert numbers(following.open(0), 3) == [6, 7, 8]


@TOPOLOGIES
def test_a_source_that_is_closed_unread_gives_its_batches_to_the_next(topology):
    generator = batches()
    opened(generator, topology).close()
    source = opened(generator, topology)
    assert [int(x[0, 0]) for x, _ in source.first_batches] == [0, 1]
    assert numbers(source.open(0), 3) == [0, 1, 2]


@TOPOLOGIES
@pytest.mark.parametrize("taken", [1, 5])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_restored_pass_leaves_out_what_was_trained(taken, steps, topology):
    generator = batches()
    source = opened(generator, topology)
    position = DataPosition(
        batch=taken, trained=taken, passes=1, taken=taken, learned=None, seed=None
    )
    iterator = source.reopen(position, None)
    if steps:
        assert numbers(iterator, steps) == list(range(taken, taken + steps))
        source.took(taken + steps)
    source.close()
    following = opened(generator, topology)
    assert numbers(following.open(0), 3) == list(range(taken + steps, taken + steps + 3))


@TOPOLOGIES
def test_the_first_batches_alone_are_read_once(topology):
    generator = batches()
    source = opened(generator, topology, only=4)
    for _ in range(3):
        assert numbers(source.open(0), 9) == [0, 1, 2, 3]
        source.took(4)
    source.close()
    assert numbers(opened(generator, topology).open(0), 2) == [4, 5]


def test_what_keras_refuses_is_left_in_the_generator():
    generator = (np.full((2, 1), n) for n in itertools.count())  # no tuples
    with pytest.raises(ValueError, match="must return a tuple"):
        opened(generator, ALONE)
    with pytest.raises(ValueError, match=r"Received: \[\[0\]"):
        opened(generator, ALONE)
