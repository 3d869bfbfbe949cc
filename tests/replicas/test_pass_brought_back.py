"""A pass over a dataset that is restored continues as Keras's own iterator does."""

import pytest
import tensorflow as tf

from phalanx.data.adapt import make_batch_source
from phalanx.data.batch_iterator import BatchIterator
from phalanx.data.iterator_position import DataPosition
from phalanx.data.iterator_state import read_iterator, write_iterator
from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import CheckpointMismatchError

BATCHES, PASSES = 9, 3


def batches():
    tf.random.set_seed(11)  # as in a process that has just started
    dataset = tf.data.Dataset.range(60).shuffle(20).batch(7)
    return make_batch_source(dataset, topology=ReplicaTopology(), seed=0)


def rows(iterator):
    return [parts[0][1].numpy().tolist() for _, parts in iterator]


@pytest.fixture(scope="module")
def undisturbed():
    source = batches()
    return [rows(source.open(0)) for _ in range(PASSES)]


@pytest.mark.parametrize("keeps", [True, False], ids=["iterator", "skip"])
@pytest.mark.parametrize("taken", [1, 8])
@pytest.mark.parametrize("number", [0, 1])
def test_this_pass_and_the_next(number, taken, keeps, undisturbed):
    first = batches()
    for _ in range(number):
        rows(first.open(0))
    iterator = first.open(0)
    for _ in range(taken):
        next(iterator)
    state = read_iterator(iterator) if keeps else None
    at = DataPosition(
        batch=taken, trained=0, passes=number + 1, taken=taken, learned=None, seed=None
    )
    second = batches()
    assert rows(second.reopen(at, state)) == undisturbed[number][taken:]
    for following in undisturbed[number + 1 :]:
        assert rows(second.open(0)) == following


def test_a_pass_that_skipped_to_its_position_can_be_restored_again(undisturbed):
    """An iterator over `skip` has a state that no iterator over the whole dataset can restore."""
    stream = walked_to(taken=2, state=None)
    again = stream.position(4, since=2)
    assert again.taken == 4
    state = stream.iterator_state(again)
    restored = BatchIterator(batches(), steps_per_epoch=None, steps_per_execution=1)
    restored.restore(again, state)
    _, _, iterator = next(restored.epoch())
    assert rows(iterator) == undisturbed[0][4:]


def test_the_state_of_a_pass_that_was_restored_is_kept(undisturbed):
    iterator = batches().open(0)
    next(iterator)
    stream = walked_to(taken=1, state=read_iterator(iterator))
    assert stream.iterator_state(stream.position(2, since=1))


def walked_to(*, taken, state):
    """A stream that continued after `taken` batches of the first pass, and took as many again."""
    stream = BatchIterator(batches(), steps_per_epoch=None, steps_per_execution=taken)
    at = DataPosition(batch=taken, trained=taken, passes=1, taken=taken, learned=None, seed=None)
    stream.restore(at, state)
    _, size, iterator = next(stream.epoch())
    for _ in range(size):
        next(iterator)
    return stream


def test_a_state_of_another_pipeline_is_refused():
    iterator = batches().open(0)
    next(iterator)
    other = iter(tf.data.Dataset.range(60).batch(7))
    with pytest.raises(CheckpointMismatchError, match="skip"):
        write_iterator(other, read_iterator(iterator))
