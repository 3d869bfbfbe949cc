"""What the pipeline leans on in TensorFlow: these fail on the day upstream changes it."""

import numpy as np
import pytest
import tensorflow as tf


def batches_in_a_map(*, fused):
    """A dataset mapped and batched inside of a map's function, as the pipeline makes batches."""

    def batch(start):
        samples = tf.data.Dataset.range(start, start + 3).map(lambda n: n * 2)
        return samples.batch(tf.constant(3, tf.int64)).get_single_element()

    options = tf.data.Options()
    options.experimental_optimization.map_and_batch_fusion = fused
    return tf.data.Dataset.range(2).map(batch).with_options(options)


def test_without_fusion_a_map_and_a_batch_may_stand_inside_of_a_map():
    found = [batch.numpy().tolist() for batch in batches_in_a_map(fused=False)]
    assert found == [[0, 2, 4], [2, 4, 6]]


def test_the_order_of_samples_is_that_of_earlier_versions():
    """Training resumes from a checkpoint under another TensorFlow: its order must be the same."""
    shuffled = tf.random.experimental.index_shuffle
    key = tf.constant([5, 2], tf.int64)
    found = shuffled(tf.range(10, dtype=tf.int64), key, tf.constant(9, tf.int64))
    assert found.numpy().tolist() == [0, 4, 8, 5, 7, 1, 6, 3, 2, 9]


def test_the_op_behind_index_shuffle_takes_a_seed_for_each_index():
    """`index_shuffle` refuses them in 2.21; once it does not, use it in WeightedMixSampler."""
    index = tf.constant([0, 1, 2, 0, 1], tf.int64)
    last = tf.constant([2, 2, 2, 1, 1], tf.int64)
    keys = tf.constant([[7, 0, 0]] * 3 + [[7, 0, 1]] * 2, tf.int64)
    each = tf.raw_ops.RandomIndexShuffle(index=index, seed=keys, max_index=last).numpy()
    assert (sorted(each[:3]), sorted(each[3:])) == ([0, 1, 2], [0, 1])
    alone = [
        int(tf.raw_ops.RandomIndexShuffle(index=i, seed=k, max_index=m))
        for i, k, m in zip(index, keys, last, strict=True)
    ]
    assert np.array_equal(each, alone)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        tf.random.experimental.index_shuffle(index, keys, last)
