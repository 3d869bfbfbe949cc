"""Shuffled data comes in the order in which Keras's own `fit` takes it under the same seed."""

import json
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

import phalanx
from phalanx.data.batch_iterator import BatchIterator
from phalanx.data.iterator_position import DataPosition
from phalanx.keras_compat.data_adapters import adapt

SAMPLES, BATCH, EPOCHS = 22, 4, 3


class Recorder(keras.Model):
    """Notes the samples of each batch, in training and in evaluation."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.compile("sgd", "mse", run_eagerly=True)

    def train_step(self, data):
        return self._note(data)

    def test_step(self, data):
        return self._note(data)

    def _note(self, data):
        first = keras.tree.flatten(data)[0]
        self.seen.append(first.numpy().reshape(-1).tolist())
        return {"loss": tf.reduce_sum(first)}


def arrays(shuffle):
    return (np.arange(SAMPLES)[:, None],), {"batch_size": BATCH, "shuffle": shuffle}


def halves():
    """Training and validation data cut from one shuffled dataset, as scripts do."""
    whole = tf.data.Dataset.range(SAMPLES).shuffle(SAMPLES, seed=3)
    return (whole.take(15).batch(BATCH),), {"validation_data": whole.skip(15).batch(BATCH)}


def pipeline(**options):
    return (tf.data.Dataset.range(SAMPLES).shuffle(9, seed=3).batch(BATCH),), options


def unknown_length():
    return (tf.data.Dataset.range(SAMPLES).shuffle(9).filter(lambda n: n > 2).batch(BATCH),), {}


def repeated():
    data = tf.data.Dataset.range(SAMPLES).shuffle(9, seed=3).repeat().batch(BATCH)
    return (data,), {"steps_per_epoch": 7}


class Shuffled(keras.utils.PyDataset):
    """Shuffles where an epoch ends, as Keras's examples do."""

    def __init__(self, workers):
        super().__init__(workers=workers)
        self.order = np.arange(SAMPLES)

    def __len__(self):
        return -(-SAMPLES // BATCH)

    def __getitem__(self, index):
        return self.order[BATCH * index : BATCH * (index + 1), None]

    def on_epoch_end(self):
        np.random.shuffle(self.order)


CASES = {
    "PyDataset": lambda: ((Shuffled(1),), {"shuffle": False}),
    "PyDataset of two threads": lambda: ((Shuffled(2),), {"validation_data": Shuffled(1)}),
    "arrays": lambda: arrays(True),
    "arrays within batches": lambda: arrays("batch"),
    "validation split of arrays": lambda: (arrays(True)[0], {"validation_split": 0.3}),
    "dataset": pipeline,
    "dataset cut in two": halves,
    "dataset of unknown length": unknown_length,
    "dataset, fewer steps": lambda: pipeline(steps_per_epoch=4),
    "dataset, repeated": repeated,
}


def orders(name, fit, seed):
    """The batches that `fit` takes in two calls, and a number that NumPy draws after them."""
    keras.utils.set_random_seed(seed)
    model = Recorder()
    for _ in range(2):
        (x, *rest), options = CASES[name]()
        fit(model, x, *rest, epochs=EPOCHS, verbose=0, **options)
    return model.seen, np.random.random()


@pytest.mark.filterwarnings("ignore:.*ran out of data", "ignore:The data ended after")
@pytest.mark.filterwarnings("ignore:.shuffle=True. was passed")
@pytest.mark.parametrize("name", CASES)
def test_it_is_the_order_of_keras(name):
    wanted = orders(name, keras.Model.fit, 7)
    assert len(wanted[0]) > EPOCHS
    assert orders(name, phalanx.fit, 7) == wanted


def test_without_a_seed_each_epoch_has_its_own_order():
    tf.random.set_seed(None)
    model = Recorder()
    (x,), options = arrays(True)
    phalanx.fit(model, x, epochs=2, verbose=0, **options)
    passes = np.array_split(np.concatenate(model.seen), 2)
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(SAMPLES))
    assert list(passes[0]) != list(passes[1])


def batches_of(stream, epochs):
    """(batch of the epoch, rows) one after the other, as `fit` walks the epochs."""
    for _ in range(epochs):
        for step, _, iterator in stream.epoch():
            _, ((_, data),) = next(iterator)
            yield step + 1, keras.tree.flatten(data)[0].numpy().tolist()


def stream():
    from phalanx.data.dataset_batches import DatasetBatches
    from phalanx.distributed.topology import ReplicaTopology

    tf.random.set_seed(5)
    data = tf.data.Dataset.range(SAMPLES).shuffle(SAMPLES, seed=1).batch(BATCH)
    source = DatasetBatches(adapt(data), ReplicaTopology())
    return BatchIterator(source, steps_per_epoch=None, steps_per_execution=1)


def drawn_stream(workers):
    """Keras draws an order of the batches where a pass begins."""
    from phalanx.data.dataset_batches import DatasetBatches
    from phalanx.distributed.topology import ReplicaTopology

    random.seed(5)
    source = DatasetBatches(adapt(Numbered(workers), shuffle=True), ReplicaTopology())
    return BatchIterator(source, steps_per_epoch=None, steps_per_execution=1)


class Numbered(keras.utils.PyDataset):
    """Whose batches Keras shuffles."""

    def __init__(self, workers):
        super().__init__(workers=workers)

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return np.full((BATCH, 1), index)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("trained", [1, 8, 11, 12])
def test_an_order_that_keras_draws_is_restored(trained, workers):
    whole = [rows for _, rows in batches_of(drawn_stream(workers), EPOCHS)]
    assert whole[:6] != whole[6:12]
    first = drawn_stream(workers)
    walk = batches_of(first, EPOCHS)
    for _ in range(trained):
        batch, _ = next(walk)
    position = DataPosition(**json.loads(json.dumps(first.position(batch, since=1).to_json())))
    chance = random.getstate()
    second = drawn_stream(workers)
    second.restore(position, None)
    random.setstate(chance)
    found = [rows for _, rows in batches_of(second, EPOCHS - (trained - 1) // 6)]
    assert found == whole[trained:]


@pytest.mark.parametrize("trained", [1, 5, 6, 7, 11, 12, 13])
def test_it_is_restored_at_any_batch(trained):
    """Six batches an epoch: in the middle of one, at its last batch, at the first of the next."""
    whole = [rows for _, rows in batches_of(stream(), EPOCHS)]
    first = stream()
    walk = batches_of(first, EPOCHS)
    for _ in range(trained):
        batch, _ = next(walk)
    position = first.position(batch, since=1)
    second = stream()
    second.restore(position, None)
    assert [rows for _, rows in batches_of(second, EPOCHS - (trained - 1) // 6)] == whole[trained:]


def test_an_epoch_resumed_at_its_end_draws_no_order():
    """The threads of a PyDataset draw one as they start."""
    started = []
    first = drawn_stream(2)
    walk = batches_of(first, EPOCHS)
    for _ in range(6):
        batch, _ = next(walk)
    second = drawn_stream(2)
    second.restore(first.position(batch, since=1), None)
    second.source.on_epoch_begin = lambda: started.append(True)
    assert list(batches_of(second, 1)) == []
    assert not started


@pytest.mark.filterwarnings("ignore:The data ended after")
@pytest.mark.parametrize("steps", [3, 4])
def test_an_epoch_may_end_within_a_pass_of_a_dataset_of_several_threads(steps):
    """Nothing is read between two epochs: Keras's threads do not run then."""
    model = Recorder()
    data = Numbered(2)
    phalanx.fit(model, data, epochs=4, steps_per_epoch=steps, shuffle=False, verbose=0)
    assert len(model.seen) == 12
