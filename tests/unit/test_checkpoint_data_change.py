"""A training that is resumed with other data than it was saved with."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import phalanx
from phalanx.callbacks import Checkpoint, every_n_steps
from phalanx.data.dataset_identity import DatasetIdentity, translate
from phalanx.data.iterator_position import DataPosition
from phalanx.errors import CheckpointMismatchError

ROWS = 48
IDS = np.arange(ROWS, dtype="int64").reshape(-1, 1)


class Counts(keras.layers.Layer):
    """Counts how often each row was trained."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.seen = self.add_weight(
            shape=(ROWS,), initializer="zeros", dtype="int64", trainable=False, name="seen"
        )

    def call(self, ids):
        rows = tf.reshape(tf.cast(ids, tf.int64), [-1])
        self.seen.assign(tf.tensor_scatter_nd_add(self.seen, rows[:, None], tf.ones_like(rows)))
        return self.dense(tf.cast(ids, tf.float32) / ROWS)


class Stops(keras.callbacks.Callback):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 == self.step:
            raise InterruptedError


def train(directory, *, batch_size=8, x=IDS, shuffle=True, stop=None, as_dataset=False, **options):
    keras.utils.set_random_seed(1)
    counts = Counts()
    model = keras.Sequential([keras.Input((1,), dtype="int64"), counts])
    model.compile("sgd", "mse")
    checkpoint = Checkpoint(directory, every=every_n_steps(1), async_save=False, **options)
    callbacks = [checkpoint] + ([] if stop is None else [Stops(stop)])
    y = np.zeros(len(x), "float32")
    given = {"x": x, "y": y, "batch_size": batch_size, "shuffle": shuffle}
    if as_dataset:
        given = {"x": tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)}
    phalanx.fit(model, **given, epochs=1, verbose=0, callbacks=callbacks)
    return np.asarray(counts.seen)


def broken_off(directory, **options):
    """Saves step 4; the hooks of step 5 run before its checkpoint."""
    with pytest.raises(InterruptedError):
        train(directory, stop=5, **options)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"batch_size": 16}, "global batch size was 8, is 16; batches in a pass was 6, is 3"),
        ({"x": IDS[:40]}, "samples was 48, is 40"),
        ({"x": IDS[::-1].copy()}, "fingerprint was"),
        ({"shuffle": False}, "order was shuffle=True, permutation .*, is shuffle=False"),
    ],
)
def test_other_data_is_refused_naming_both_values(change, named, tmp_path):
    broken_off(tmp_path)
    with pytest.raises(CheckpointMismatchError, match=named):
        train(tmp_path, **change)
    assert set(train(tmp_path)) == {1}  # nothing was changed or removed


@pytest.mark.parametrize("as_dataset", [False, True])
def test_each_sample_is_trained_once_when_the_batch_size_changes(as_dataset, tmp_path):
    broken_off(tmp_path, as_dataset=as_dataset)
    seen = train(tmp_path, batch_size=16, as_dataset=as_dataset, allow_data_change=True)
    assert set(seen) == {1}


def test_a_change_to_a_batch_that_is_cut_repeats_samples_and_leaves_none_out(tmp_path):
    broken_off(tmp_path)
    seen = train(tmp_path, batch_size=20, allow_data_change=True)
    assert set(seen) == {1, 2}
    assert (seen == 2).sum() == 32 - 20


sizes = st.integers(1, 50)


@given(samples=st.integers(1, 300), before=sizes, after=sizes, trained=st.integers(0, 1000))
def test_the_position_moves_to_the_batch_of_the_next_sample(samples, before, after, trained):
    old, new = (
        DatasetIdentity(samples=samples, batch_size=size, batches=-(-samples // size))
        for size in (before, after)
    )
    within = trained % old.batches
    position = DataPosition(
        batch=within, trained=trained, passes=0, taken=None, learned=None, seed=1
    )
    there = translate(position, old, new)
    assert there.trained == trained // old.batches * new.batches + there.batch
    assert there.batch < new.batches or there.batch * after <= within * before
    first_untrained = within * before
    assert there.batch * after <= first_untrained < (there.batch + 1) * after
    assert translate(position, old, old) == position


@pytest.fixture
def records(tmp_path):
    from phalanx.data.sources.tfrecords.write import write_tfrecords

    rows = (IDS, np.zeros(ROWS, "float32"))
    return write_tfrecords(rows, str(tmp_path / "part"), shards=3)


def read_by_file(records):
    return phalanx.data.pipeline(phalanx.data.tfrecords(records), 8, seed=1)


def test_files_divided_between_others_are_refused_in_the_middle_of_an_epoch(
    records, tmp_path, monkeypatch
):
    def fit(stop=None):
        keras.utils.set_random_seed(1)
        counts = Counts()
        model = keras.Sequential([keras.Input((1,), dtype="int64"), counts])
        model.compile("sgd", "mse")
        saving = Checkpoint(tmp_path / "saved", every=every_n_steps(1), async_save=False)
        callbacks = [saving] + ([] if stop is None else [Stops(stop)])
        data = read_by_file(records)
        phalanx.fit(model, data, epochs=1, verbose=0, callbacks=callbacks)
        return np.asarray(counts.seen)

    reads_by_file = "phalanx.data.streams.stream_batches.shards_by_file"
    with monkeypatch.context() as divided:
        divided.setattr(reads_by_file, lambda *_, **__: True)  # as with several workers
        with pytest.raises(InterruptedError):
            fit(stop=5)
    with pytest.raises(CheckpointMismatchError, match=r"with 1 worker.*Resume with 1 worker"):
        fit()
    with monkeypatch.context() as divided:
        divided.setattr(reads_by_file, lambda *_, **__: True)
        assert set(fit()) == {1}


def test_the_division_of_files_is_compared_within_a_pass_alone(records):
    from phalanx.data.batch_iterator import BatchIterator
    from phalanx.data.pipelines.registry import pipeline_of
    from phalanx.distributed.topology import ReplicaTopology

    made = pipeline_of(read_by_file(records))
    streams = [
        BatchIterator(
            made.batches(ReplicaTopology(total=workers)),
            steps_per_epoch=None,
            steps_per_execution=1,
        )
        for workers in (1, 2, 3)
    ]
    for trained, kinds in ((0, 1), (4, 3), (6, 1), (7, 3)):
        assert len({stream.division(trained) for stream in streams}) == kinds


def test_what_is_unknown_is_not_compared():
    known = DatasetIdentity(samples=8, batch_size=4, batches=2, order="a", fingerprint=1)
    assert known.differences(DatasetIdentity()) == []
    assert DatasetIdentity().differences(known) == []
    assert known.differences(DatasetIdentity.from_json(known.to_json())) == []
    assert known.differences(DatasetIdentity.from_json(None)) == []
