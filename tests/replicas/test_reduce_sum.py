"""The sum over replicas: packed by dtype, rows of slices in the order of replicas."""

import pytest
import tensorflow as tf
from small_models import on_replicas

from phalanx.gradients.all_reduce import reduce_sum


def added_up(strategy, function, *columns):
    """The dtypes of the tensors that replicas add up when `function` is traced."""
    counted = []
    owner = next(k for k in tf.distribute.ReplicaContext.__mro__ if "all_reduce" in vars(k))
    original = owner.all_reduce

    def counting(self, reduce_op, value, options=None):
        counted.extend(v.dtype.name for v in tf.nest.flatten(value))
        return original(self, reduce_op, value, options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, "all_reduce", counting)
        on_replicas(strategy, function, *columns)
    return counted


@pytest.mark.parametrize("replicas", [2, 3])
def test_dense_values_are_added_up_on_every_replica(replicas, request):
    strategy = request.getfixturevalue(f"mirrored{replicas}")

    def step(i):
        return reduce_sum([i, tf.stack([i, 2 * i]), tf.reshape(tf.stack([i, i]), [1, 2])])

    ids = [tf.constant(float(i + 1)) for i in range(replicas)]
    whole = replicas * (replicas + 1) / 2
    for scalar, vector, matrix in on_replicas(strategy, step, ids):
        assert float(scalar) == whole
        assert vector.numpy().tolist() == [whole, 2 * whole]
        assert matrix.numpy().tolist() == [[whole, whole]]


def test_dtypes_and_order_are_kept(mirrored2):
    dtypes = ["float32", "int32", "float16", "float32", "int64", "float64"]

    def step(i):
        return reduce_sum([tf.cast(tf.fill([k + 1], i + k), d) for k, d in enumerate(dtypes)])

    for results in on_replicas(mirrored2, step, [tf.constant(1), tf.constant(5)]):
        assert [r.dtype.name for r in results] == dtypes
        for k, result in enumerate(results):
            assert result.numpy().tolist() == [6 + 2 * k] * (k + 1)


def test_nothing_stays_nothing(mirrored2):
    def step(i):
        total = reduce_sum([None, i, None])
        assert [t is None for t in total] == [True, False, True]
        return total[1]

    assert on_replicas(mirrored2, step, [tf.constant(1.0), tf.constant(2.0)])[0] == 3.0


def test_one_collective_a_dtype(mirrored2):
    def step(i):
        dense = [tf.fill([k], i) for k in range(1, 6)]
        return reduce_sum([*dense, None, tf.cast(dense[0], tf.float16), *dense])

    counted = added_up(mirrored2, step, [tf.constant(1.0), tf.constant(2.0)])
    assert sorted(counted) == ["float16"] * 2 + ["float32"] * 2, "one a dtype on each replica"


def test_rows_of_slices_come_in_the_order_of_the_replicas(mirrored3):
    def step(i):
        slices = tf.IndexedSlices(
            tf.cast(tf.stack([[i, i], [10 * i, i]]), tf.float32),
            tf.stack([i, 0]),
            tf.constant([9, 2]),
        )
        (total,) = reduce_sum([slices])
        assert isinstance(total, tf.IndexedSlices)
        return total.values, total.indices

    for rows, indices in on_replicas(mirrored3, step, [tf.constant(i) for i in (1, 2, 3)]):
        assert indices.numpy().tolist() == [1, 0, 2, 0, 3, 0]
        assert rows.numpy()[:, 0].tolist() == [1, 10, 2, 20, 3, 30]


def test_replicas_may_hold_different_numbers_of_rows(mirrored2):
    def step(i):
        indices = tf.range(i)
        slices = tf.IndexedSlices(tf.ones([i, 1]), indices, tf.constant([5, 1]))
        (total,) = reduce_sum([slices])
        return tf.math.unsorted_segment_sum(total.values, total.indices, 5)

    for dense in on_replicas(mirrored2, step, [tf.constant(3), tf.constant(1)]):
        assert dense.numpy()[:, 0].tolist() == [2, 1, 1, 0, 0]


def test_shapes_may_be_unknown(mirrored2):
    def step(i):
        unknown = tf.fill(tf.stack([i - i + 2, 3]), tf.cast(i, tf.float32))
        assert not unknown.shape.is_fully_defined()
        return reduce_sum([unknown, tf.cast(i, tf.float32)])

    for matrix, scalar in on_replicas(mirrored2, step, [tf.constant(1), tf.constant(4)]):
        assert matrix.numpy().tolist() == [[5.0] * 3] * 2
        assert float(scalar) == 5.0
