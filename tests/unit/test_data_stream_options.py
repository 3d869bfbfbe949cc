"""What a stream of records can be asked for beyond its order: epochs' length, padding, a cache."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import phalanx
from phalanx.data.adapt import make_batch_source
from phalanx.data.pipelines.registry import pipeline_of
from phalanx.distributed.topology import ReplicaTopology

SAMPLES = 10


@pytest.fixture
def files(tmp_path):
    """Record n is n + 1 bytes of n."""
    return phalanx.data.write_tfrecords(
        np.arange(SAMPLES),
        str(tmp_path / "part"),
        shards=2,
        compression="GZIP",
        serialize=lambda n: bytes([n] * (n + 1)),
    )


def first_byte(record):
    return tf.cast(tf.io.decode_raw(record, tf.uint8)[0], tf.int32)


def moved(value, seed):
    return value + 100 * tf.random.stateless_uniform([], seed, 0, 1000, tf.int32)


def make(files, **options):
    source = phalanx.data.tfrecords(files)
    return phalanx.data.pipeline(source, 4, seed=1, shuffle_buffer=6, **options)


def epoch(dataset):
    return [batch.numpy().tolist() for batch in dataset]


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


def test_steps_per_epoch_continue_where_the_last_epoch_ended(files):
    whole = make(files, map=first_byte)
    passes = epoch(whole) + epoch(whole)
    cut = make(files, map=first_byte, steps_per_epoch=2)
    assert int(cut.cardinality()) == 2
    assert [epoch(cut) for _ in range(3)] == [passes[:2], passes[2:4], passes[4:]]
    source = make_batch_source(cut, topology=ReplicaTopology(), seed=0)
    assert (source.num_batches, source.num_samples, source.endless) == (2, None, True)
    _, ((_, data),) = next(source.open(4))
    assert data.numpy().tolist() == passes[4]
    started = make(files, map=first_byte, steps_per_epoch=2, start=(1, 1))
    assert [epoch(started) for _ in range(2)] == [passes[3:4], passes[4:]]


@pytest.mark.full
@pytest.mark.parametrize(("shards", "buffer"), [(1, SAMPLES), (SAMPLES, 1)])
def test_files_and_records_are_shuffled_by_seed_and_epoch(tmp_path, shards, buffer):
    files = phalanx.data.write_tfrecords(np.arange(SAMPLES), str(tmp_path / "part"), shards=shards)
    source = phalanx.data.tfrecords(files)

    def orders(seed):
        dataset = phalanx.data.pipeline(source, SAMPLES, seed=seed, shuffle_buffer=buffer)
        return [tuple(epoch(dataset)[0]) for _ in range(2)]

    first, other = orders(1), orders(2)
    assert orders(1) == first
    assert len({*first, *other}) == 4
    assert {tuple(sorted(order)) for order in (*first, *other)} == {tuple(range(SAMPLES))}


@pytest.mark.full
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_sequences_are_padded(files, workers):
    padding = phalanx.data.Padding(to=12, value=77)
    dataset = make(files, map=lambda record: tf.io.decode_raw(record, tf.uint8), padding=padding)
    found = []
    for rank in range(workers):
        topology = ReplicaTopology(first=rank, total=workers)
        iterator = make_batch_source(dataset, topology=topology, seed=0).open(0)
        for _ in range(3):
            _, ((count, data),) = next(iterator)
            found += data.numpy()[: int(count)].tolist()
    expected = [[n] * (n + 1) + [77] * (11 - n) for n in range(SAMPLES)]
    assert sorted(found) == sorted(expected)


@pytest.mark.full
@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_cached_sample_is_read_once_and_changed_again(files, tmp_path, where):
    cache = "memory" if where == "memory" else f"disk:{tmp_path}/cache"
    dataset = make(files, map=first_byte, augment=moved, cache=cache)
    later = make(files, map=first_byte, augment=moved, cache=cache)
    plain = make(files, map=first_byte, augment=moved)
    expected = [epoch(plain) for _ in range(3)]
    found = [epoch(dataset)]
    for file in files:
        Path(file).unlink()
    found += [epoch(dataset) for _ in range(2)]
    assert found == expected
    assert sorted(value % 100 for value in flat(found[1])) == list(range(SAMPLES))
    assert found[0] != found[1]
    if where == "disk":
        assert epoch(later) == expected[0]
        (kept,) = Path(tmp_path).glob("cache/*/0/3")
        kept.write_bytes(kept.read_bytes()[:-1])
        with pytest.raises(tf.errors.OpError, match="DataError: Asked for sample 3 from cache="):
            epoch(later)


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("sparse", "disk"),
        ("ragged", "memory"),
        pytest.param("sparse", "memory", marks=pytest.mark.full),
        pytest.param("ragged", "disk", marks=pytest.mark.full),
    ],
)
def test_sparse_and_ragged_samples_are_kept(files, tmp_path, kind, where):
    def several(record):
        numbers = tf.range(tf.strings.length(record), dtype=tf.int64)
        if kind == "ragged":
            return {"r": tf.RaggedTensor.from_row_lengths(numbers, [tf.size(numbers)])}
        return {"r": tf.sparse.from_dense(tf.one_hot(tf.size(numbers), 40))}

    options = {"cache": "memory"}
    if where == "disk":
        options = {"cache": f"disk:{tmp_path / 'cache'}", "cache_key": "several"}

    def batches(**options):
        dataset = make(files, map=several, shuffle=False, **options)
        return [[plain(batch["r"]) for batch in dataset] for _ in range(2)]

    def plain(value):
        return value.to_list() if kind == "ragged" else tf.sparse.to_dense(value).numpy().tolist()

    assert batches(**options) == batches()


def test_a_damaged_sample_is_read_again(files, tmp_path):
    dataset = make(files, map=first_byte, cache=f"disk:{tmp_path}/cache")
    expected = [epoch(dataset) for _ in range(2)]
    (kept,) = Path(tmp_path).glob("cache/*/0/3")
    whole = kept.read_bytes()
    for damaged in (b"", whole[:-1], bytes([whole[0] ^ 1]) + whole[1:], bytes(len(whole))):
        kept.write_bytes(damaged)
        again = make(files, map=first_byte, cache=f"disk:{tmp_path}/cache")
        assert epoch(again) == expected[0]
        assert kept.read_bytes() == whole


@pytest.mark.full
def test_workers_that_keep_samples_share_one_sequence(files):
    """Two files for three workers: read by record, whatever was kept."""
    dataset = make(files, map=first_byte, augment=moved, cache="memory")
    iterators = [
        pipeline_of(dataset).batches(ReplicaTopology(first=rank, total=3)).open(0)
        for rank in range(3)
    ]
    found = []
    for _ in range(6):
        parts = [next(iterator)[1][0] for iterator in iterators]
        found.append(flat(data.numpy()[: int(count)].tolist() for count, data in parts))
    plain = make(files, map=first_byte, augment=moved)
    assert found == epoch(plain) + epoch(plain)
