"""Which shapes of a step name the size of the global batch, and are the replica's part of it."""

import functools

import keras
import pytest
import tensorflow as tf

from phalanx.distributed.topology import rows_of
from phalanx.keras_compat.constant_shapes import BatchSizeInShapes, constant_shapes_by_rows
from phalanx.keras_compat.patches import Patches
from phalanx.keras_compat.random_draws import ReplicaRows, draws_by_rows

BATCH = 8


@functools.cache
def kernel():
    return keras.Variable(tf.zeros((BATCH, 5)))


def held_by(replica, total):
    start, count = rows_of(replica, 2, total)
    static = count if isinstance(total, int) else None
    return ReplicaRows(
        start=start, own_rows=count, total=total, static_count=static, replica=replica
    )


def made_by(function, replica=0, total=BATCH, batch_size=BATCH):
    """What a replica of two makes of a batch of `total` rows."""
    kernel_shape = tuple(kernel().shape)
    rows = held_by(replica, total)
    named = BatchSizeInShapes(batch_size, 2, lambda: {kernel_shape})
    found = None if rows is None else (rows, named)
    with (
        Patches(lambda: draws_by_rows(lambda: rows)),
        Patches(lambda: constant_shapes_by_rows(lambda: found)),
    ):
        return function()


DRAWS = {
    "keras": lambda: keras.random.normal((BATCH, 3), seed=3),
    "beside_a_shape": lambda: (tf.shape(0), keras.random.normal((BATCH, 3), seed=3))[1],
    "keras_uniform": lambda: keras.random.uniform(shape=[BATCH, 3], seed=3),
    "keras_truncated": lambda: keras.random.truncated_normal((BATCH,), seed=3),
    "integers": lambda: keras.random.randint((BATCH, 3), 0, 99, seed=3),
    "stateless": lambda: tf.random.stateless_normal(shape=(BATCH, 3), seed=(1, 2)),
    "as_a_kernel": lambda: keras.random.normal((BATCH, 5), seed=3),
}


@pytest.mark.parametrize("total", [BATCH, BATCH // 2])
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_two_replicas_draw_the_rows_of_one_device(draw, total):
    drawn = [made_by(draw, replica, total) for replica in (0, 1)]
    assert all(part.shape[0] == BATCH // 2 for part in drawn)
    assert tf.reduce_all(tf.concat(drawn, 0) == draw())


def test_a_batch_of_another_size_is_divided_as_near_as_can_be():
    drawn = [made_by(DRAWS["keras"], replica, 5) for replica in (0, 1)]
    assert [part.shape[0] for part in drawn] == [4, 3]


def test_in_a_graph_the_rows_are_not_static():
    def step(total):
        drawn = made_by(DRAWS["keras"], 1, total)
        assert drawn.shape.as_list() == [None, 3]
        return drawn

    traced = tf.function(step, autograph=False)
    drawn = traced(tf.constant(BATCH))
    assert tf.reduce_all(drawn == DRAWS["keras"]()[BATCH // 2 :])
    assert traced(tf.constant(5)).shape[0] == 3


def with_labels():
    noise = keras.random.normal((BATCH, 3), seed=3)
    return [noise, tf.ones((BATCH, 1)), tf.zeros([BATCH]), keras.ops.ones((BATCH, 1)),
            tf.fill([BATCH, 5], 2.0), tf.ones((3, BATCH))]  # fmt: skip


def test_labels_of_draws_are_divided_with_them():
    assert [made.shape[0] for made in made_by(with_labels)] == [4, 4, 4, 4, 4, 3]


class Builds(keras.layers.Layer):
    def build(self, shape):
        self.noise = keras.random.normal((BATCH, 3), seed=3)

    def call(self, x):
        return self.noise


SAME = {
    "another_size": lambda: keras.random.normal((BATCH + 1, 3), seed=3),
    "a_multiple": lambda: keras.random.normal((3 * BATCH, 3), seed=3),
    "a_shape_of_a_tensor": lambda: keras.random.normal(kernel().shape, seed=3),
    "rows_of_a_tensor": lambda: keras.random.normal((kernel().shape[0], 3), seed=3),
    "a_variable": lambda: keras.random.normal((8, 5), seed=3),
    "labels_alone": lambda: tf.ones((BATCH, 1)),
    "an_initializer": lambda: keras.initializers.RandomNormal(seed=1)((BATCH, 3)),
    "a_layer_that_is_built": lambda: Builds()(tf.ones((1, 1))),
}


@pytest.mark.parametrize("function", SAME.values(), ids=SAME)
def test_what_names_no_batch_keeps_its_rows(function):
    assert tuple(made_by(function).shape) == tuple(function().shape)


def test_where_the_size_is_unknown_all_stays():
    assert made_by(DRAWS["keras"], batch_size=None).shape[0] == BATCH
