"""Rows chosen before they are mapped are those that a worker would take of whole batches."""

import threading
from collections import Counter
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phalanx.data.adapt import make_batch_source
from phalanx.data.inspection.inspect import inspect
from phalanx.data.iterator_position import DataPosition
from phalanx.data.iterator_state import read_iterator
from phalanx.data.pushdown import plan
from phalanx.distributed.topology import ReplicaTopology, rows_of
from phalanx.keras_compat.dataset_graph import transformations
from phalanx.keras_compat.rowwise_functions import is_rowwise

AUTOTUNE = tf.data.AUTOTUNE


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(3)
    yield
    tf.random.set_seed(None)


def changed(number, more):
    return number * 3 + 1, {"more": more["more"] + tf.cast(number, tf.float32)}


def shorter(number, more):
    return number, {"more": more["more"] / 2}


def noisy(number, more):
    return number, {"more": more["more"] + tf.random.uniform([], seed=5)}


def mapped_parts(dataset):
    numbers = dataset.map(lambda number, more: number + 1, num_parallel_calls=2)
    others = dataset.map(lambda number, more: {"more": more["more"] - 1})
    return tf.data.Dataset.zip((numbers, others))


def fixed_options(dataset):
    options = tf.data.Options()
    options.autotune.enabled = True
    return dataset.with_options(options)


SAMPLE_STEPS = {
    "map": lambda d: d.map(changed),
    "parallel map": lambda d: d.map(shorter, num_parallel_calls=AUTOTUNE),
    "random map": lambda d: d.map(noisy),
    "filter": lambda d: d.filter(lambda number, more: number % 5 != 2),
    "shuffle": lambda d: d.shuffle(7, seed=4),
    "fixed shuffle": lambda d: d.shuffle(30, seed=9, reshuffle_each_iteration=False),
    "repeat": lambda d: d.repeat(2),
    "take": lambda d: d.take(17),
    "skip": lambda d: d.skip(2),
    "shard": lambda d: d.shard(2, 1),
    "prefetch": lambda d: d.prefetch(3),
    "cache": lambda d: d.cache(),
    "zip": mapped_parts,
    "interleave": lambda d: d.interleave(
        lambda *sample: tf.data.Dataset.from_tensors(sample).repeat(2), cycle_length=3
    ),
    "options": fixed_options,
}


def scaled(number, more):
    return tf.cast(number, tf.float32) / 3, {"more": tf.expand_dims(more["more"], -1) * [[1.0, 2]]}


BATCH_STEPS = {
    "map": lambda d: d.map(lambda number, more: (number * 2, more)),
    "parallel map": lambda d: d.map(scaled, num_parallel_calls=2) if is_flat(d) else d,
    "mean": lambda d: d.map(lambda number, more: (number - tf.reduce_max(number), more)),
    "shuffle": lambda d: d.shuffle(7, seed=4),
    "repeat": lambda d: d.repeat(2),
    "skip": lambda d: d.skip(2),
    "take": lambda d: d.take(4),
    "prefetch": lambda d: d.prefetch(3),
    "cache": lambda d: d.cache(),
    "options": fixed_options,
}


def is_flat(dataset):
    return dataset.element_spec[1]["more"].shape.rank == 1


def samples(count):
    numbers = np.arange(count)
    return tf.data.Dataset.from_tensor_slices((numbers, {"more": numbers.astype("float32") / 8}))


def made(pipeline):
    """The dataset of a drawn pipeline; equal ones have the same seeds."""
    count, steps, (size, drop, parallel, padded), batch_steps = pipeline
    tf.random.set_seed(8)
    dataset = samples(count)
    for name in steps:
        dataset = SAMPLE_STEPS[name](dataset)
    if padded:
        dataset = dataset.map(lambda number, more: (tf.range(number % 3), more))
        dataset = dataset.padded_batch(size, padded_shapes=([3], {"more": []}), drop_remainder=drop)
    else:
        dataset = dataset.batch(size, drop, num_parallel_calls=2 if parallel else None)
    for name in batch_steps:
        dataset = BATCH_STEPS[name](dataset)
    return dataset


PIPELINES = st.tuples(
    st.integers(0, 40),
    st.lists(st.sampled_from(sorted(SAMPLE_STEPS)), max_size=5),
    st.tuples(st.integers(1, 9), st.booleans(), st.booleans(), st.booleans()),
    st.lists(st.sampled_from(sorted(BATCH_STEPS)), max_size=2),
)


def sources(make, workers, local=1):
    """Of each worker, as its process would have it."""
    return [
        make_batch_source(
            make(),
            topology=ReplicaTopology(first=rank * local, local=local, total=workers * local),
            seed=0,
        )
        for rank in range(workers)
    ]


def numpy(data):
    return keras.tree.map_structure(lambda value: value.numpy(), data)


def own_rows(element):
    total, parts = element
    return int(total), [
        keras.tree.map_structure(lambda value, n=count: value.numpy()[: int(n)], data)
        for count, data in parts
    ]


def joined(elements):
    """The global batch that one element of each worker makes up."""
    totals, parts = zip(*map(own_rows, elements), strict=True)
    assert len(set(totals)) == 1
    flat = [part for worker in parts for part in worker]
    for replica, part in enumerate(flat):
        rows = len(keras.tree.flatten(part)[0])
        assert rows == rows_of(replica, len(flat), totals[0])[1]
    return keras.tree.map_structure(lambda *values: np.concatenate(values), *flat)


def same(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        # A batch of a single structure is a tuple of one for fit.
        other = other if isinstance(one, tuple) == isinstance(other, tuple) else (other,)
        keras.tree.map_structure(np.testing.assert_array_equal, one, other)


def check_batches(pipeline, workers, local, seen):
    """All workers together have the batches of the dataset, also where a script has `seen` it."""
    plain = made(pipeline)
    passes = [[numpy(batch) for batch in plain] for _ in range(3)]

    def make():
        dataset = made(pipeline)
        if seen:
            for _ in dataset:
                pass
        return dataset

    each = sources(make, workers, local)
    for one in passes[1:] if seen else passes[:2]:
        opened = [list(source.open(0)) for source in each]
        same([joined(elements) for elements in zip(*opened, strict=True)], one)


PLACES = st.integers(2, 4), st.sampled_from([1, 1, 2]), st.booleans()


@settings(max_examples=5)
@example((23, ["map", "shuffle", "zip"], (5, False, False, False), ["map", "shuffle"]), 3, 1, True)
@example((23, ["shuffle", "map", "repeat"], (5, True, True, True), ["repeat"]), 2, 2, False)
@given(PIPELINES, *PLACES)
def test_all_workers_together_have_the_batches_of_the_dataset(pipeline, workers, local, seen):
    check_batches(pipeline, workers, local, seen)


@pytest.mark.full
@settings(max_examples=60)
@given(PIPELINES, *PLACES)
def test_they_have_them_in_many_more_pipelines(pipeline, workers, local, seen):
    check_batches(pipeline, workers, local, seen)


def check_resume(pipeline, taken):
    """An iterator continues where it was saved, and one without a state where it would be."""
    for passes_before in (0, 1):
        source = sources(lambda: made(pipeline), 2)[1]
        for _ in range(passes_before):
            list(source.open(0))
        iterator = source.open(0)
        if any(next(iterator, None) is None for _ in range(taken)):
            return
        state = read_iterator(iterator) if source.has_state and passes_before else None
        if state is None and passes_before:
            return  # of nested shuffles, opening them unread moves the outer one only
        rest = [own_rows(element) for element in iterator]
        position = DataPosition(
            batch=0,
            trained=taken,
            passes=passes_before + 1,
            taken=taken,
            learned=None,
            seed=None,
        )
        restored = sources(lambda: made(pipeline), 2)[1].reopen(position, state)
        again = [own_rows(element) for element in restored]
        same([data for _, data in again], [data for _, data in rest])
        assert [total for total, _ in again] == [total for total, _ in rest]


@settings(max_examples=4)
@example((23, ["map", "shuffle", "parallel map"], (5, False, False, False), ["shuffle"]), 3)
@given(PIPELINES, st.integers(0, 6))
def test_an_iterator_continues_where_it_was_saved(pipeline, taken):
    check_resume(pipeline, taken)


@pytest.mark.full
@settings(max_examples=40)
@given(PIPELINES, st.integers(0, 6))
def test_it_does_in_many_more_pipelines(pipeline, taken):
    check_resume(pipeline, taken)


class Decoder:
    """A function of samples that counts for which it was called."""

    def __init__(self):
        self.calls = Counter()
        self._lock = threading.Lock()

    def __call__(self, number):
        with self._lock:
            self.calls[int(number)] += 1
        return np.float32(number)

    def map(self, dataset, **options):
        def decode(number):
            return tf.ensure_shape(
                tf.numpy_function(self, [number], tf.float32, stateful=False), []
            )

        return dataset.map(decode, **options)


def decoded(make, workers=2):
    """For each worker the samples that it decodes in a pass."""
    decoders = [Decoder() for _ in range(workers)]
    for rank, decoder in enumerate(decoders):
        topology = ReplicaTopology(first=rank, local=1, total=workers)
        list(make_batch_source(make(decoder), topology=topology, seed=0).open(0))
    return [decoder.calls for decoder in decoders]


N = 46  # the last batch of 8 has 6 rows

PUSHED = {
    "by the book": lambda decoder: (
        decoder.map(tf.data.Dataset.range(N).shuffle(N, seed=1), num_parallel_calls=AUTOTUNE)
        .batch(8)
        .prefetch(AUTOTUNE)
    ),
    "shuffle after map": lambda decoder: (
        decoder.map(tf.data.Dataset.range(N)).shuffle(N, seed=1).batch(8)
    ),
    "zip with labels": lambda decoder: tf.data.Dataset.zip(
        (decoder.map(tf.data.Dataset.range(N)), tf.data.Dataset.range(N))
    ).batch(8),
    "cache in order": lambda decoder: decoder.map(tf.data.Dataset.range(N)).cache().batch(8),
    "interleave below": lambda decoder: decoder.map(
        tf.data.Dataset.range(2).interleave(
            lambda i: tf.data.Dataset.range(N // 2).map(lambda n: n * 2 + i),
            num_parallel_calls=2,
            deterministic=True,
        )
    ).batch(8),
    "unknown length": lambda decoder: decoder.map(
        tf.data.Dataset.range(N).filter(lambda n: n >= 0)
    ).batch(8),
}


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("name", PUSHED)
def test_each_sample_is_decoded_once(name, workers):
    calls = decoded(PUSHED[name], workers)
    assert sum(calls, Counter()) == Counter(dict.fromkeys(range(N), 1))
    counts = [each.total() for each in calls]
    assert max(counts) - min(counts) <= N // 8 + 1


def test_a_worker_without_rows_decodes_one_to_compute_with():
    def make(decoder):
        return decoder.map(tf.data.Dataset.range(17)).batch(8)

    first, second = decoded(make)
    assert (first.total(), second.total()) == (9, 8 + 1)


def test_a_cache_is_kept_from_one_fit_to_the_next():
    decoder = Decoder()
    dataset = decoder.map(tf.data.Dataset.range(N)).cache().batch(8)
    for _ in range(2):
        list(make_batch_source(dataset, topology=ReplicaTopology(total=2), seed=0).open(0))
    assert set(decoder.calls.values()) == {1}


def ragged_samples():
    rows = tf.ragged.constant([[[1, 2], [3]], [[]], [[4, 5, 6]], [[7], [8], [9]], [[1]]])
    return tf.data.Dataset.from_tensor_slices(rows)


def sparse_samples():
    return tf.data.Dataset.range(7).map(
        lambda n: tf.sparse.from_dense(tf.one_hot(n % 3, 4, dtype=tf.int64))
    )


SHAPES = {
    "ragged": lambda: ragged_samples().map(lambda one: one * 2).batch(2),
    "sparse": lambda: sparse_samples().map(lambda one: one * 2).batch(3),
    "named": lambda: tf.data.Dataset.zip(
        {"b": tf.data.Dataset.range(7).map(lambda n: n + 1), "a": tf.data.Dataset.range(7)}
    ).batch(3),
    "strings": lambda: tf.data.Dataset.range(7).map(tf.strings.as_string).batch(3),
    "equal parts": lambda: tf.data.Dataset.range(8).map(lambda n: [n, n]).batch(4, True),
    "image": lambda: (
        tf.data.Dataset.range(7)
        .map(lambda n: tf.zeros([6, 4, 3]) + tf.cast(n, tf.float32))
        .batch(4, drop_remainder=True)
        .map(lambda x: tf.image.resize(x, (3, 3)))
        .map(lambda x: tf.reshape(x[..., 0], [-1, 9]) / 255.0)
    ),
}


SHAPES |= {
    "one part": lambda: (
        tf.data.Dataset.from_tensor_slices((np.arange(7),)).map(lambda n: (n, n * 2)).batch(3)
    ),
    "zip of one": lambda: tf.data.Dataset.zip(
        (tf.data.Dataset.range(7).map(lambda n: n + 1),)
    ).batch(3),
    "scalar": lambda: (
        tf.data.Dataset.range(7).map(lambda n: n + 1).batch(3).map(lambda n: (n, tf.constant(2.0)))
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_elements_have_the_shapes_of_parts_of_whole_batches(name, monkeypatch):
    pushed = sources(SHAPES[name], 2)[1].open(0)
    assert plan(SHAPES[name]())[0] is not None
    monkeypatch.setattr("phalanx.data.dataset_batches.plan", lambda dataset: (None, ()))
    whole = sources(SHAPES[name], 2)[1].open(0)
    assert pushed.element_spec == whole.element_spec
    for one, other in zip(pushed, whole, strict=True):
        tf.nest.map_structure(
            np.testing.assert_array_equal,
            tf.nest.flatten(one, expand_composites=True),
            tf.nest.flatten(other, expand_composites=True),
        )


class Named(NamedTuple):
    a: object
    b: object


@pytest.mark.parametrize(
    "batches",
    [
        lambda d: tf.data.Dataset.zip((d,)).batch(3),
        lambda d: tf.data.Dataset.zip(((d, d),)).batch(3),
        lambda d: d.map(lambda n: Named(n, n)).batch(3),
    ],
)
def test_batches_that_are_cut_keep_their_structure(batches):
    dataset = batches(tf.data.Dataset.range(7))
    for source in sources(lambda: batches(tf.data.Dataset.range(7)), 2):
        _, ((_, data),) = next(iter(source.open(0)))
        tf.nest.assert_same_structure(data, dataset.element_spec)
        assert tf.nest.map_structure(lambda one: one.dtype, data) == tf.nest.map_structure(
            lambda one: one.dtype, dataset.element_spec
        )


def drawn(number):
    return tf.cast(number, tf.float32) + tf.random.uniform([])


def in_python(number):
    return tf.py_function(lambda value: value, [number], tf.int64)


def assigned(number):
    return counter().assign_add(number)


COUNTERS = []


def counter():
    if not COUNTERS:
        with tf.init_scope():
            COUNTERS.append(tf.Variable(0, dtype=tf.int64, trainable=False))
    return COUNTERS[0]


def added(number):
    return number + 1


def numbers():
    return tf.data.Dataset.range(N)


def unordered(dataset):
    options = tf.data.Options()
    options.deterministic = False
    return dataset.with_options(options)


NOT_PUSHED = {
    "random": (lambda: numbers().map(added).map(drawn).batch(8), "random", "Map"),
    "python": (lambda: numbers().map(in_python).batch(8), "python", "Map"),
    "state": (lambda: numbers().map(assigned).batch(8), "state", "Map"),
    "filter": (lambda: numbers().map(added).filter(lambda n: n > 3).batch(8), "filter", "Filter"),
    "cache, shuffle": (
        lambda: numbers().map(added).cache().shuffle(9).batch(8),
        "cache-order",
        "Cache",
    ),
    "file": (lambda: numbers().map(added).cache("name").batch(8), "cache-file", "Cache"),
    "shuffle, cache": (
        lambda: numbers().shuffle(9).map(added).cache().batch(8),
        "cache-moves",
        "Cache",
    ),
    "inner": (
        lambda: numbers().interleave(lambda n: tf.data.Dataset.range(n).map(added)).batch(8),
        "inner-map",
        "Interleave",
    ),
    "padding": (lambda: numbers().map(tf.range).padded_batch(8), "padding", "PaddedBatch"),
    "sparse padding": (
        lambda: numbers().map(lambda n: tf.sparse.from_dense(tf.range(n % 5))).batch(8),
        "padding",
        "Batch",
    ),
    "batches": (
        lambda: numbers().map(added).batch(8).map(lambda n: n - tf.reduce_max(n)),
        "batch-map",
        "Map",
    ),
    "order": (
        lambda: unordered(numbers().map(added, num_parallel_calls=2).batch(8)),
        "order",
        "ParallelMap",
    ),
    "no batch": (lambda: numbers().map(lambda n: [n, n]), "no-batch", "Map"),
    "memory": (
        lambda: (
            tf.data.Dataset.from_tensor_slices(np.zeros([9, 2**20])).map(added).shuffle(9).batch(8)
        ),
        "memory",
        "Shuffle",
    ),
    "memory times buffer": (
        lambda: (
            tf.data.Dataset.from_tensors(np.zeros(2**17))
            .repeat(99)
            .map(lambda series: series[:3])
            .shuffle(80)
            .batch(8)
        ),
        "memory",
        "Shuffle",
    ),
    "other": (lambda: numbers().map(added).concatenate(numbers()).batch(8), "other", "Concatenate"),
}


@pytest.mark.parametrize("name", NOT_PUSHED)
def test_what_is_in_the_way_is_named(name):
    make, reason, kind = NOT_PUSHED[name]
    pushdown, obstacles = plan(make())
    assert pushdown is None
    assert [(one.reason, one.step.kind) for one in obstacles] == [(reason, kind)]
    (found,) = (one for one in inspect(make(), workers=2).findings if one.trap == "mapped-by-all")
    assert kind in found.what
    assert not [one for one in inspect(make(), workers=1).findings if one.trap == "mapped-by-all"]


def test_maps_above_what_is_in_the_way_are_pushed():
    pushdown, obstacles = plan(numbers().map(drawn).map(added).shuffle(9).map(added).batch(8))
    assert len(pushdown.maps) == 2
    assert [one.reason for one in obstacles] == ["random"]


def test_without_maps_batches_are_cut_as_they_are():
    assert plan(numbers().shuffle(9).batch(8).map(added)) == (None, ())


BY_ROW = {
    "scale": lambda x: x / 255.0 - [[[1.0, 2.0, 3.0]]],
    "named axis": lambda x: tf.transpose(x, [0, 2, 1, 3]),
    "channel": lambda x: tf.expand_dims(x[..., 0], -1),
    "one pixel": lambda x: x[:, 0, 1],
    "flat": lambda x: tf.reshape(x, [-1, 18]),
    "largest": lambda x: tf.argmax(x, axis=-1),
    "one-hot": lambda x: tf.one_hot(tf.cast(x, tf.int32), 3),
    "table": lambda x: tf.gather([1.0, 2.0], tf.cast(x, tf.int32)),
    "pad": lambda x: tf.pad(x, [[0, 0], [1, 1], [0, 0], [0, 0]]),
    "layer": lambda x: keras.layers.Rescaling(2.0)(x),
}
NOT_BY_ROW = {
    "mean": lambda x: x - tf.reduce_max(x, axis=0),
    "reversed": lambda x: x[::-1],
    "first": lambda x: x[0],
    "first axis": lambda x: tf.expand_dims(x, 0),
    "rows as columns": lambda x: tf.transpose(x, [1, 0, 2, 3]),
    "joined": lambda x: tf.reshape(x, [-1, 36]),
    "number": lambda x: x * tf.cast(tf.shape(x)[0], tf.float32),
    "one-hot": lambda x: tf.one_hot(tf.cast(x, tf.int32), 3, axis=0),
    "mixed": lambda x: x + tf.reverse(x, [0]),
    "lost": lambda x: tf.zeros([3]),
    "inexact": tf.exp,
    "pad": lambda x: tf.pad(x, [[1, 0], [0, 0], [0, 0], [0, 0]]),
    "largest": lambda x: tf.argmax(x, axis=0),
    "outer": lambda x: x[:, 0, 0, 0][None] + x[:, 0, 0, 0][:, None],
}


@pytest.mark.parametrize("name", BY_ROW)
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_functions_of_rows_are_known(name, drop_remainder):
    images = tf.data.Dataset.from_tensors(tf.zeros([2, 3, 3])).batch(2, drop_remainder)
    assert is_rowwise(transformations(images.map(BY_ROW[name])))


@pytest.mark.parametrize("name", NOT_BY_ROW)
def test_other_functions_of_batches_are_not_taken_for_them(name):
    images = tf.data.Dataset.from_tensors(tf.zeros([2, 3, 3])).batch(2)
    assert not is_rowwise(transformations(images.map(NOT_BY_ROW[name])))
