"""Shuffles that are opened at other times than the dataset draw the same orders after a resume."""

import json

import pytest
import tensorflow as tf

from phalanx.data.batch_iterator import BatchIterator
from phalanx.data.dataset_batches import DatasetBatches
from phalanx.data.iterator_position import DataPosition
from phalanx.distributed.topology import ReplicaTopology

EPOCHS = 4


class Adapter:
    """What Keras's adapter gives of a pipeline."""

    def __init__(self, dataset):
        self._dataset = dataset
        self.num_batches = int(dataset.cardinality())
        self.num_batches = self.num_batches if self.num_batches >= 0 else None

    def get_tf_dataset(self):
        return self._dataset

    def on_epoch_begin(self):
        pass

    def on_epoch_end(self):
        pass


def numbers(count=60):
    return tf.data.Dataset.range(count)


def files():
    """As of `list_files`: a shuffle of names below a shuffle of samples."""
    names = numbers(6).shuffle(6)
    read = names.interleave(lambda n: tf.data.Dataset.range(10 * n, 10 * n + 10), cycle_length=2)
    return read.shuffle(9).batch(7), None


def taken_apart():
    shuffled = numbers().shuffle(60)
    return shuffled.skip(20).batch(7), shuffled.take(20).batch(7)


def cached():
    return numbers().shuffle(60).cache().batch(7), None


def zipped():
    pair = tf.data.Dataset.zip(numbers().shuffle(9), numbers().shuffle(60).map(lambda n: n + 1))
    return pair.map(lambda a, b: 100 * a + b).shuffle(5).batch(7), None


def of_a_large_source():
    return tf.data.Dataset.from_tensor_slices(tf.range(60)).shuffle(60).shuffle(9).batch(7), None


def twice():
    return numbers().shuffle(60).repeat(2).shuffle(20).batch(7), None


PIPELINES = (files, taken_apart, cached, zipped, of_a_large_source, twice)


class Training:
    """Passes over a pipeline, each followed by one over the validation data."""

    def __init__(self, make, steps_per_epoch=None):
        tf.random.set_seed(11)  # as in a process that has just started
        training, validation = make()
        topology = ReplicaTopology()
        self.source = DatasetBatches(Adapter(training), topology)
        self.batches = BatchIterator(
            self.source, steps_per_epoch=steps_per_epoch, steps_per_execution=1
        )
        self.validation = validation and DatasetBatches(Adapter(validation), topology)
        self.saved = {}

    def run(self, epochs, keeps=True):
        """Rows of all epochs; saves the state after each step."""
        found = []
        for epoch in epochs:
            for step, _, iterator in self.batches.epoch():
                try:
                    _, parts = next(iterator)
                except StopIteration:
                    self.batches.reached_end(steps_done=0)
                    continue
                found.append((epoch, step, parts[0][1].numpy().tolist()))
                self.save(epoch, step, 1, keeps)
            if self.validation is not None:
                for _, parts in self.validation.open(0):
                    found.append((epoch, -1, parts[0][1].numpy().tolist()))
            self.save(epoch, -1, 0, keeps)
        return found

    def save(self, epoch, step, since, keeps):
        position = self.batches.position(step + 1, since=since)
        state = self.batches.iterator_state(position) if keeps else None
        self.saved[epoch, step] = json.dumps(position.to_json()), state


def resumed(make, at, saved, **options):
    position, state = saved
    training = Training(make, **options)
    training.batches.restore(DataPosition(**json.loads(position)), state)
    epoch, step = at
    return training.run(range(epoch + (step < 0), EPOCHS))


@pytest.mark.parametrize("keeps", [True, False], ids=["iterator", "read again"])
@pytest.mark.parametrize("make", PIPELINES, ids=lambda make: make.__name__)
def test_what_follows_is_the_same(make, keeps):
    first = Training(make)
    whole = first.run(range(EPOCHS), keeps)
    length = sum(epoch == 0 for epoch, _, _ in whole)
    steps = length - (first.validation is not None) * 3
    for at in [(0, 0), (0, steps - 2), (0, -1), (1, 3), (2, steps - 1), (2, -1)]:
        number = at[0] * length + (at[1] if at[1] >= 0 else length - 1)
        assert resumed(make, at, first.saved[at]) == whole[number + 1 :], at


def test_a_pass_over_several_epochs():
    make = taken_apart
    first = Training(make, steps_per_epoch=2)
    whole = first.run(range(EPOCHS))
    for at, number in {(0, 1): 1, (0, -1): 4, (1, 0): 5, (2, -1): 14}.items():
        assert resumed(make, at, first.saved[at], steps_per_epoch=2) == whole[number + 1 :], at
