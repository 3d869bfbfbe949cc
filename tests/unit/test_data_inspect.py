"""What `phalanx.data.inspect` finds in datasets; nothing of them is read."""

import keras
import pytest
import tensorflow as tf

from phalanx.data.inspection.inspect import inspect
from phalanx.errors import ConfigurationError
from phalanx.keras_compat.dataset_graph import batch_size_of, transformations


def samples(count=100):
    return tf.data.Dataset.range(count)


def traps(dataset, **of):
    return [finding.trap for finding in inspect(dataset, **{"workers": 2, **of}).findings]


def noisy(x):
    return tf.cast(x, tf.float32) + tf.random.uniform([])


def in_python(x):
    return tf.numpy_function(lambda v: v, [x], tf.int64)


def generated():
    spec = tf.TensorSpec([], tf.int64)
    return tf.data.Dataset.from_generator(lambda: iter(range(9)), output_signature=spec)


def interleaved(**options):
    names = tf.data.Dataset.from_tensor_slices(["a", "b"])
    return names.interleave(tf.data.TFRecordDataset, num_parallel_calls=2, **options).batch(4)


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(3)
    yield
    tf.random.set_seed(None)


def test_a_good_dataset_has_no_trap():
    dataset = samples().shuffle(100).batch(8, drop_remainder=True).prefetch(2)
    seen = inspect(dataset, workers=2)
    assert seen.findings == ()
    assert seen.is_right
    assert seen.pipeline == ("Range", "Shuffle", "Batch", "Prefetch")
    assert (seen.batch_size, seen.batches, seen.replicas) == (8, 12, 2)
    assert "each of 2 replicas takes 4 of its rows" in seen.sharding
    assert "2 times" in seen.cost
    assert "No known trap" in str(seen)


@pytest.mark.parametrize(
    ("trap", "made"),
    [
        ("shard-by-hand", lambda: samples().shard(2, 0).batch(8)),
        ("cache-after-shuffle", lambda: samples().shuffle(100).cache().batch(8)),
        ("repeat-before-shuffle", lambda: samples().repeat(2).shuffle(100).batch(8)),
        ("batch-not-divisible", lambda: samples().batch(7)),
        ("batch-smaller-than-replicas", lambda: samples().batch(1)),
        ("batch-before-shuffle", lambda: samples().batch(8).shuffle(100)),
        ("drop-remainder", lambda: samples().batch(8)),
        ("unknown-length", lambda: samples().filter(lambda x: x > 3).batch(8)),
        ("endless", lambda: samples().repeat().batch(8)),
        ("generator", lambda: generated().batch(8)),
        ("non-deterministic-order", lambda: interleaved(deterministic=False)),
        ("no-prefetch", lambda: samples().batch(8)),
        ("sequential-map", lambda: samples().map(lambda x: x + 1).batch(8)),
        ("python-function", lambda: samples().map(in_python).batch(8)),
        ("random-map", lambda: samples().map(noisy).batch(8)),
        ("small-shuffle-buffer", lambda: samples().shuffle(5).batch(8)),
        ("no-batch", lambda: samples()),
    ],
)
def test_a_trap_is_found(trap, made):
    assert trap in traps(made())


@pytest.mark.parametrize(
    ("trap", "made"),
    [
        ("shard-by-hand", lambda: samples().shard(1, 0).batch(8)),
        ("cache-after-shuffle", lambda: samples().cache().shuffle(100).batch(8)),
        ("repeat-before-shuffle", lambda: samples().shuffle(100).repeat(2).batch(8)),
        ("batch-not-divisible", lambda: samples().batch(8)),
        ("drop-remainder", lambda: samples().batch(8, drop_remainder=True)),
        ("non-deterministic-order", lambda: interleaved()),
        ("non-deterministic-order", lambda: interleaved(deterministic=True)),
        ("no-prefetch", lambda: samples().batch(8).prefetch(1)),
        ("sequential-map", lambda: samples().map(lambda x: x, num_parallel_calls=2).batch(8)),
        ("unseeded-shuffle", lambda: samples().shuffle(100).batch(8)),
        ("small-shuffle-buffer", lambda: samples().shuffle(50).batch(8)),
        ("endless", lambda: samples().batch(8)),
    ],
)
def test_what_is_right_is_no_trap(trap, made):
    assert trap not in traps(made())


def test_shuffles_without_any_seed():
    tf.random.set_seed(None)
    assert {"unseeded-shuffle", "unseeded-shuffle-before-shard"} <= set(
        traps(samples().shuffle(100).shard(2, 1).batch(8))
    )
    assert "unseeded-shuffle" not in traps(samples().shuffle(100, seed=1).batch(8))
    alone = inspect(samples().shuffle(100).batch(8), workers=1)
    assert alone.is_right
    assert not inspect(samples().shuffle(100).batch(8), workers=2).is_right


def test_options_may_give_up_the_order():
    options = tf.data.Options()
    options.deterministic = False
    mapped = samples().map(lambda x: x, num_parallel_calls=2).batch(8)
    assert "non-deterministic-order" not in traps(mapped)
    assert "non-deterministic-order" in traps(mapped.with_options(options))


def test_the_worst_comes_first_and_once():
    bad = samples().repeat().shuffle(100).shard(2, 0).shuffle(9).batch(8)
    weights = [finding.weight for finding in inspect(bad, workers=2).findings]
    assert weights == sorted(weights, key=["wrong", "slow", "note"].index)
    assert traps(bad).count("repeat-before-shuffle") == 1


def test_what_cannot_be_looked_at():
    with pytest.raises(ConfigurationError, match=r"tf\.data\.Dataset; found list"):
        inspect([1, 2])
    with pytest.raises(ConfigurationError, match="workers=3, replicas=2"):
        inspect(samples(), workers=3, replicas=2)


class TestCanaries:
    """What src/phalanx/keras_compat/dataset_graph.py reads of TensorFlow's own objects."""

    def test_a_shuffle_knows_its_seeds(self):
        (step,) = [s for s in walked(samples().shuffle(7, seed=5)) if s.kind == "Shuffle"]
        assert step.seeds == (3, 5)
        assert step.buffer_size == 7
        assert step.reshuffles

    def test_batches_repeats_and_caches_know_their_numbers(self):
        made = samples().take(9).repeat(3).cache("kept").batch(4, drop_remainder=True)
        take, repeat, cache, batch = walked(made)[1:]
        assert (take.count, repeat.count, cache.filename) == (9, 3, "kept")
        assert (batch.batch_size, batch.drop_remainder) == (4, True)

    def test_the_batch_size_is_unknown_where_rows_may_change_after_the_batch(self):
        of_32 = samples().batch(32)
        assert batch_size_of(of_32.map(lambda *parts: parts).prefetch(1)) == 32
        assert batch_size_of(tf.data.Dataset.sample_from_datasets([of_32, of_32])) is None
        assert batch_size_of(samples().batch(256).rebatch(32)) is None
        assert batch_size_of(samples().batch(256).unbatch()) is None

    def test_interleaves_and_readers_know_whether_they_are_deterministic(self):
        assert walked(interleaved(deterministic=False))[1].deterministic == "false"
        assert walked(interleaved())[1].deterministic == "default"
        reader = tf.data.TFRecordDataset(["a", "b"], num_parallel_reads=2)
        assert walked(reader)[-1].kind == "TFRecord"
        assert walked(reader)[-1].parallel

    def test_functions_report_what_they_call(self):
        assert walked(samples().map(in_python))[-1].python
        assert walked(samples().map(noisy))[-1].random
        assert walked(samples().map(noisy))[-1].seeded


def walked(dataset):
    return list(transformations(dataset).walk())
