"""Shuffles that are opened at other times than the dataset draw the same orders after a resume."""

import json

import pytest
import tensorflow as tf

from phalanx.data import shuffles
from phalanx.data.adapt import make_batch_source
from phalanx.data.batch_iterator import BatchIterator
from phalanx.data.iterator_position import DataPosition
from phalanx.distributed.datasets import ShardedDataset
from phalanx.distributed.topology import ReplicaTopology

EPOCHS = 4


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


def in_memory():
    return tf.data.Dataset.from_tensor_slices(tf.range(60)).shuffle(60).shuffle(9).batch(7), None


def twice():
    return numbers().shuffle(60).repeat(2).shuffle(20).batch(7), None


PIPELINES = (files, taken_apart, cached, zipped, in_memory, twice)
IN_MAKE_TEST = {
    (zipped, True),
    *((make, keeps) for make in (taken_apart, cached, in_memory) for keeps in (True, False)),
}


class Training:
    """Passes over a pipeline, each followed by one over the validation data."""

    def __init__(self, make, steps_per_epoch=None):
        tf.random.set_seed(11)  # as in a process that has just started
        training, validation = make()
        self.batches = BatchIterator(
            make_batch_source(training, topology=ReplicaTopology(), seed=0),
            steps_per_epoch=steps_per_epoch,
            steps_per_execution=1,
        )
        self.validation = validation and make_batch_source(
            validation, topology=ReplicaTopology(), seed=0
        )
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


def restarted(make, saved, **options):
    position, state = saved
    training = Training(make, **options)
    training.batches.restore(DataPosition(**json.loads(position)), state)
    return training


def resumed(make, at, saved, **options):
    epoch, step = at
    return restarted(make, saved, **options).run(range(epoch + (step < 0), EPOCHS))


def kept_or_read_again():
    for make in PIPELINES:
        for keeps in (True, False):
            marks = () if (make, keeps) in IN_MAKE_TEST else pytest.mark.full
            name = f"{make.__name__}-{'iterator' if keeps else 'read again'}"
            yield pytest.param(make, keeps, marks=marks, id=name)


@pytest.mark.parametrize(("make", "keeps"), list(kept_or_read_again()))
def test_what_follows_is_the_same(make, keeps):
    first = Training(make)
    whole = first.run(range(EPOCHS), keeps)
    length = sum(epoch == 0 for epoch, _, _ in whole)
    steps = length - (first.validation is not None) * 3
    for at in [(0, 0), (0, steps - 2), (0, -1), (1, 3), (2, steps - 1), (2, -1)]:
        number = at[0] * length + (at[1] if at[1] >= 0 else length - 1)
        assert resumed(make, at, first.saved[at]) == whole[number + 1 :], at


@pytest.mark.parametrize("keeps", [True, False], ids=["iterator", "read again"])
def test_a_source_that_is_too_large_to_copy(keeps, monkeypatch):
    monkeypatch.setattr(shuffles, "MOST_BYTES", -1)  # the shuffle itself is opened to read it
    test_what_follows_is_the_same(in_memory, keeps)


def test_a_second_restart_in_one_epoch():
    first = Training(files)
    whole = first.run(range(EPOCHS), keeps=False)
    second = restarted(files, first.saved[1, 2])  # has read the first batches again
    second.run([1])
    length = len(whole) // EPOCHS
    assert resumed(files, (1, 4), second.saved[1, 4]) == whole[length + 5 :]


def test_a_pass_over_several_epochs():
    make = taken_apart
    first = Training(make, steps_per_epoch=2)
    whole = first.run(range(EPOCHS))
    for at, number in {(0, 1): 1, (0, -1): 4, (1, 0): 5, (2, -1): 14}.items():
        assert resumed(make, at, first.saved[at], steps_per_epoch=2) == whole[number + 1 :], at


def chosen():
    """Of unknown length, as records that are read from files."""
    return numbers().shuffle(60).filter(lambda n: n % 5 > 0).batch(7), None


def sharded():
    """As `strategy.experimental_distribute_dataset` gives it."""
    return ShardedDataset(chosen()[0]), None


@pytest.mark.parametrize("make", [chosen, sharded], ids=lambda make: make.__name__)
def test_what_workers_know_of_the_end(make):
    """What they ask each other: how many batches there are beyond those that they took."""
    tf.random.set_seed(11)
    first_of_two = ReplicaTopology(first=0, local=1, total=2)
    source = make_batch_source(make()[0], topology=first_of_two, seed=0)
    taken, length = 3, 7
    position = DataPosition(
        batch=taken,
        trained=taken,
        passes=1,
        taken=taken,
        learned=None,
        seed=None,
        seeds_before=(0,),
        seeds_drawn=(2,),
    )
    iterator = source.reopen(position, None)
    for step in range(length - taken):
        ready, _ = source.ahead.wait(step, 10)
        assert 1 <= ready <= length - taken - step
        next(iterator)
    assert source.ahead.wait(length - taken, 10) == (0, True)
