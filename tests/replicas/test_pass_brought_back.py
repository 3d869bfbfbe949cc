"""A pass over a dataset that is restored continues as Keras's own iterator does."""

import pytest
import tensorflow as tf

from phalanx.data.dataset_batches import DatasetBatches
from phalanx.data.iterator_position import DataPosition
from phalanx.data.iterator_state import read_iterator
from phalanx.distributed.topology import ReplicaTopology

BATCHES, PASSES = 9, 3


class Adapter:
    """What Keras's adapter gives of a pipeline."""

    num_batches = BATCHES

    def __init__(self):
        tf.random.set_seed(11)  # as in a process that has just started
        self._dataset = tf.data.Dataset.range(60).shuffle(20).batch(7)

    def get_tf_dataset(self):
        return self._dataset

    def on_epoch_begin(self):
        pass

    def on_epoch_end(self):
        pass


def batches():
    return DatasetBatches(Adapter(), ReplicaTopology())


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
