"""Whole pipelines, each worker's share put together in one process."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import phalanx
from phalanx.data.adapt import make_batch_source
from phalanx.data.pipelines.registry import pipeline_of
from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import ConfigurationError, DataError

ALONE = ReplicaTopology()


def joined(lists):
    return list(itertools.chain.from_iterable(lists))


def rows(value):
    return value.numpy().tolist()


def shares(dataset, topology, batches, position=0):
    """For each batch its samples, over all replicas of a place."""
    iterator = make_batch_source(dataset, topology=topology, seed=0).open(position)
    found = []
    for _ in range(batches):
        total, parts = next(iterator)
        found.append((int(total), [rows(data)[: int(count)] for count, data in parts]))
    return found


def together(dataset, workers, batches, local=1):
    """The global batches, put together from the shares of all workers."""
    of_each = [
        shares(dataset, ReplicaTopology(first=f, local=local, total=workers * local), batches)
        for f in range(0, workers * local, local)
    ]
    whole = []
    for at_once in zip(*of_each, strict=True):
        parts = [part for _, parts in at_once for part in parts]
        assert {total for total, _ in at_once} == {sum(map(len, parts))}
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        whole.append(joined(parts))
    return whole


def changed(x, seed):
    return x * 100 + tf.random.stateless_uniform([], seed, 0, 100, tf.int64)


def sequences():
    return [np.arange(1, n + 1) for n in (3, 1, 4, 1, 5, 2, 2)]


CASES = {
    "mapped and augmented": lambda: phalanx.data.pipeline(
        np.arange(11), 4, seed=3, map=lambda x: x + 1, augment=changed, cache="memory"
    ),
    "mixed": lambda: phalanx.data.pipeline(
        phalanx.data.mix([np.arange(5), np.arange(100, 106)], [1, 2]), 4, augment=changed
    ),
    "in buckets": lambda: phalanx.data.pipeline(
        sequences(), 2, padding=phalanx.data.Padding(lengths=tf.size, buckets=[2, 4])
    ),
    "padded to the longest of all workers": lambda: phalanx.data.pipeline(
        sequences(), 3, padding=phalanx.data.Padding(lengths=[3, 1, 4, 1, 5, 2, 2], value=-1)
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_workers_share_one_sequence(name):
    dataset = CASES[name]()
    batches = 2 * pipeline_of(dataset).num_batches
    one = together(dataset, 1, batches)
    assert together(dataset, 3, batches) == one
    assert together(dataset, 1, batches, local=2) == one
    by_hand = [rows(batch) for _ in range(2) for batch in dataset]
    assert by_hand == one


@pytest.mark.full
def test_what_is_cached_is_not_what_is_augmented():
    dataset = phalanx.data.pipeline(np.arange(11), 11, augment=changed, cache="memory")
    first, second = ([x for batch in dataset for x in rows(batch)] for _ in range(2))
    assert sorted(x // 100 for x in first) == sorted(x // 100 for x in second) == list(range(11))
    assert [x // 100 for x in first] != [x // 100 for x in second]
    assert len({x % 100 for x in first + second}) > 5
    assert sorted(first) != sorted(second)


@pytest.mark.full
@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_a_cached_sample_is_read_once(tmp_path, cache):
    read = []

    class Source:
        def __len__(self):
            return 6

        def __getitem__(self, row):
            read.append(row)
            return np.arange(row + 1), f"name {row}"

    where = {"cache": "memory"}
    if cache == "disk":
        where = {"cache": f"disk:{tmp_path}", "cache_key": "names"}

    def make():
        return phalanx.data.pipeline(
            Source(), 6, shuffle=False, padding=phalanx.data.Padding(to=6), **where
        )

    dataset = make()
    read.clear()
    passes = [[(rows(x), rows(y)) for x, y in dataset] for _ in range(2)]
    assert sorted(read) == list(range(6))
    assert passes[0] == passes[1]
    assert passes[0][0][0][2] == [0, 1, 2, 0, 0, 0]
    assert passes[0][0][1][5] == b"name 5"
    if cache == "disk":
        other = make()
        read.clear()
        assert [(rows(x), rows(y)) for x, y in other] == passes[0]
        assert read == []
        for file in tmp_path.glob("*/0/3"):
            file.write_bytes(file.read_bytes()[:-1])
        assert [(rows(x), rows(y)) for x, y in other] == passes[0]
        assert read == [3]


@pytest.mark.parametrize("cache", ["memory", "disk"])
@pytest.mark.parametrize("kind", ["sparse", "ragged"])
def test_sparse_and_ragged_samples_are_cached(tmp_path, kind, cache):
    def several(count):
        if kind == "ragged":
            return count, tf.RaggedTensor.from_row_lengths(tf.range(count), [count - 1, 1])
        return count, tf.sparse.from_dense(tf.one_hot([count, 0], 6))

    def batches(**options):
        dataset = phalanx.data.pipeline(
            np.arange(1, 6),
            2,
            map=several,
            map_batches=lambda n, r: (n, r),
            shuffle=False,
            **options,
        )
        return [[(rows(n), plain(r)) for n, r in dataset] for _ in range(2)]

    def plain(value):
        return value.to_list() if kind == "ragged" else rows(tf.sparse.to_dense(value))

    options = {"cache": "memory"}
    if cache == "disk":
        options = {"cache": f"disk:{tmp_path}", "cache_key": "several"}
    expected = batches()
    assert batches(**options) == expected
    assert batches(**options) == expected  # from the files of before, where there are any


def test_scalars_next_to_a_batch_are_everybodys():
    dataset = phalanx.data.pipeline(
        np.arange(7), 4, map_batches=lambda n: (n, tf.constant(2.0)), shuffle=False
    )
    assert [(rows(n), float(scale)) for n, scale in dataset][-1] == ([4, 5, 6], 2.0)
    for rank in range(2):
        topology = ReplicaTopology(first=rank * 2, local=2, total=4)
        source = make_batch_source(dataset, topology=topology, seed=0)
        _, parts = next(source.open(0))
        assert [float(scale) for _, (_, scale) in parts] == [2.0, 2.0]


def test_a_position_is_enough():
    dataset = phalanx.data.pipeline(np.arange(10), 4, seed=1)
    whole = shares(dataset, ALONE, 9)
    assert shares(dataset, ALONE, 2, position=7) == whole[7:]
    started = phalanx.data.pipeline(np.arange(10), 4, seed=1, start=(1, 2))
    by_hand = [rows(batch) for _ in range(2) for batch in started]
    assert by_hand == [batch for _, (batch,) in whole[5:9]]


def test_steps_per_epoch_continue_where_the_last_epoch_ended():
    dataset = phalanx.data.pipeline(np.arange(10), 4, seed=1, steps_per_epoch=2)
    whole = shares(phalanx.data.pipeline(np.arange(10), 4, seed=1), ALONE, 6)
    assert int(dataset.cardinality()) == 2
    by_hand = [rows(batch) for _ in range(3) for batch in dataset]
    assert by_hand == [batch for _, (batch,) in whole]
    source = make_batch_source(dataset, topology=ALONE, seed=0)
    assert (source.num_batches, source.num_samples, source.endless) == (2, None, True)


def test_balanced_classes_come_equally_often():
    labels = np.array([0] * 17 + [1] * 2 + [2])
    dataset = phalanx.data.pipeline((np.arange(20), labels), 20, balance=True)
    for _ in range(2):
        ((_, found),) = dataset
        assert sorted(np.bincount(found.numpy())) == [6, 7, 7]


def test_a_mix_takes_the_shares_that_were_asked():
    mixed = phalanx.data.mix([np.arange(5), np.arange(100, 105)], [1, 4])
    (batch,) = phalanx.data.pipeline(mixed, 10)
    assert sum(x >= 100 for x in rows(batch)) == 8


def test_chance_follows_from_seed_epoch_and_place():
    def drawn(sample, seed):
        return tf.random.stateless_uniform([], seed)

    def of(seed):
        dataset = phalanx.data.pipeline(np.zeros(3), 3, shuffle=False, augment=drawn, seed=seed)
        return [x for _ in range(2) for batch in dataset for x in rows(batch)]

    first, other = of(1), of(2)
    assert of(1) == first
    assert len({*first, *other}) == 12


def test_batches_are_mapped_complete():
    dataset = phalanx.data.pipeline(
        (np.arange(6), np.arange(6)), 4, shuffle=False, map_batches=lambda x, y: (x / 2, y)
    )
    assert [rows(x) for x, _ in dataset] == [[0, 0.5, 1, 1.5], [2, 2.5]]
    assert dataset.element_spec[0].dtype == tf.float64


def test_a_share_without_samples_is_empty_by_hand_and_is_a_stand_in_for_fit():
    dataset = phalanx.data.pipeline(np.arange(5), 4, shuffle=False)
    topology = ReplicaTopology(first=2, total=3)
    own = pipeline_of(dataset).dataset(topology)
    assert [rows(batch) for batch in own] == [[3], []]
    source = make_batch_source(dataset, topology=topology, seed=0)
    assert source.may_be_empty
    *_, (total, ((count, data),)) = [next(iterator) for iterator in [source.open(0)] * 2]
    assert (int(total), int(count), len(data)) == (1, 0, 1)


def test_a_dataset_made_further_is_refused_on_several_workers():
    dataset = phalanx.data.pipeline(np.arange(5), 4)
    further = dataset.map(lambda x: x).prefetch(1)
    with pytest.raises(DataError, match="by further steps"):
        make_batch_source(further, topology=ReplicaTopology(first=0, total=2), seed=0)
    assert shares(further, ALONE, 2)


def test_what_cannot_be_next_to_a_pipeline_is_refused():
    dataset = phalanx.data.pipeline(np.arange(5), 4)
    with pytest.raises(DataError, match="class_weight next to what"):
        make_batch_source(dataset, topology=ALONE, seed=0, class_weight={0: 1.0})
    started = phalanx.data.pipeline(np.arange(5), 4, start=(1, 0))
    with pytest.raises(ConfigurationError, match="initial_epoch"):
        make_batch_source(started, topology=ALONE, seed=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_batch_size": 0}, "global_batch_size: a whole number of at least 1; found 0"),
        ({"seed": -1}, "seed"),
        ({"steps_per_epoch": 2.5}, "steps_per_epoch"),
        ({"map": 3}, "map: a function"),
        ({"on_error": "ignore"}, "on_error"),
        ({"cache": "disk:"}, "cache 'memory' or 'disk:PATH'"),
        ({"cache_key": "a"}, "cache_key: .* found 'a' next to None"),
        ({"cache_key": "", "cache": "disk:x"}, "cache_key: .* found '' next to 'disk:x'"),
        ({"start": (1,)}, "start"),
        ({"balance": True, "shuffle": False}, "shuffle=True alone"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        phalanx.data.pipeline((np.arange(4), np.arange(4)), **{"global_batch_size": 2, **options})


def test_requests_that_contradict_each_other_are_refused():
    padding = phalanx.data.Padding(lengths=[1] * 4, buckets=[2])
    with pytest.raises(ConfigurationError, match="balance= and buckets="):
        phalanx.data.pipeline(np.ones((4, 1)), 2, balance=[0, 0, 1, 1], padding=padding)
    with pytest.raises(ConfigurationError, match="to= or lengths="):
        phalanx.data.Padding()
    with pytest.raises(ConfigurationError, match="growing"):
        phalanx.data.Padding(lengths=[1], buckets=[4, 2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: phalanx.data.pipeline(np.zeros((0, 2)), 2), "with 0 samples"),
        (lambda: phalanx.data.pipeline(np.zeros(3), 4, drop_remainder=True), "make none"),
        (lambda: phalanx.data.pipeline(np.zeros(3), 4, balance=True), "does not know its classes"),
        (lambda: phalanx.data.pipeline(np.zeros(3), 4, balance=[1, 2]), r"shape \(2,\)"),
        (lambda: phalanx.data.pipeline(7, 4), "from a int: 7"),
        (lambda: phalanx.data.pipeline("no-such.csv", 4), "found none"),
        (lambda: phalanx.data.pipeline((np.zeros(3), np.zeros(4)), 2), r"first axes of \[3, 4\]"),
        (
            lambda: phalanx.data.pipeline(
                [np.zeros(2), np.zeros(3)], 2, padding=phalanx.data.Padding(lengths=[1.5, 2])
            ),
            "one whole number for each of 2 samples",
        ),
    ],
)
def test_data_that_cannot_be_is_refused(make, message):
    with pytest.raises(DataError, match=message):
        make()


def test_more_workers_than_samples_are_refused():
    dataset = phalanx.data.pipeline(np.arange(2), 4)
    with pytest.raises(DataError, match=r"2 sample\(s\) between 3 workers"):
        make_batch_source(dataset, topology=ReplicaTopology(total=3), seed=0)


def test_weights_of_a_mix_must_fit():
    with pytest.raises(ConfigurationError, match=r"2 source\(s\) and weights"):
        phalanx.data.mix([np.arange(3), np.arange(3)], [1])
    with pytest.raises(DataError, match="of source 1"):
        phalanx.data.mix([np.arange(3), np.zeros((3, 2))], [1, 1])


def test_a_batch_is_as_long_as_its_longest_sample():
    padding = phalanx.data.Padding(lengths=[3, 1, 4, 1, 5, 2, 2], value=-1)
    dataset = phalanx.data.pipeline(sequences(), 3, padding=padding, shuffle=False)
    assert [rows(batch)[0] for batch in dataset] == [[1, 2, 3, -1], [1, -1, -1, -1, -1], [1, 2]]
