"""Packing, scaling and shares: the parts of the gradient pipeline that need no strategy."""

import contextlib
import threading

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.gradients.all_reduce import pack, reduce_sum, scale, unpack
from phalanx.gradients.replica_batch import ReplicaBatch
from phalanx.gradients.step_context import current_replica_batch, step_scope

SHAPES = st.lists(st.lists(st.integers(0, 3), max_size=3).map(tuple), min_size=1, max_size=5)


def numbered(shapes):
    begin, made = 0, []
    for shape in shapes:
        size = int(np.prod(shape, dtype=int))
        made.append(tf.reshape(tf.range(begin, begin + size, dtype=tf.float32), shape))
        begin += size
    return made


@settings(derandomize=True, deadline=None, max_examples=25)
@given(SHAPES)
def test_what_is_packed_is_unpacked(shapes):
    tensors = numbered(shapes)
    packed = pack(tensors)
    assert packed.numpy().tolist() == list(range(packed.shape[0]))
    back = unpack(packed, tensors)
    assert [b.shape for b in back] == [t.shape for t in tensors]
    assert all((b.numpy() == t.numpy()).all() for b, t in zip(back, tensors, strict=True))


def test_shapes_may_be_unknown_until_the_step_runs():
    specs = [tf.TensorSpec([None, 2]), tf.TensorSpec([]), tf.TensorSpec(None)]

    @tf.function(input_signature=specs)
    def round_trip(*tensors):
        return unpack(pack(tensors), tensors)

    tensors = [tf.ones([3, 2]), tf.constant(5.0), tf.fill([2, 1, 2], 7.0)]
    for back, tensor in zip(round_trip(*tensors), tensors, strict=True):
        assert back.shape == tensor.shape
        assert (back.numpy() == tensor.numpy()).all()


def test_known_shapes_stay_known():
    @tf.function(input_signature=[tf.TensorSpec([2, 3]), tf.TensorSpec([4])])
    def shapes(*tensors):
        assert [t.shape.as_list() for t in unpack(pack(tensors), tensors)] == [[2, 3], [4]]
        return 0

    shapes(tf.ones([2, 3]), tf.ones([4]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_scaling_keeps_the_dtype(dtype):
    (scaled,) = scale([tf.constant([1.0, 2.0], dtype)], tf.constant(0.5))
    assert scaled.dtype == dtype
    assert tf.cast(scaled, tf.float32).numpy().tolist() == [0.5, 1.0]


def test_scaling_leaves_none_and_the_rows_of_slices():
    slices = tf.IndexedSlices(tf.constant([[2.0], [4.0]]), tf.constant([3, 1]), tf.constant([5, 1]))
    nothing, scaled = scale([None, slices], tf.constant(0.5))
    assert nothing is None
    assert scaled.values.numpy().tolist() == [[1.0], [2.0]]
    assert scaled.indices.numpy().tolist() == [3, 1]
    assert scaled.dense_shape.numpy().tolist() == [5, 1]


def test_the_sum_over_one_replica_is_the_value():
    slices = tf.IndexedSlices(tf.constant([[2.0]]), tf.constant([3]), tf.constant([5, 1]))
    values = [tf.constant([1.0, 2.0]), None, tf.constant(3), slices]
    total = reduce_sum(values)
    assert total[0].numpy().tolist() == [1.0, 2.0]
    assert total[1] is None
    assert int(total[2]) == 3
    assert total[3].values.numpy().tolist() == [[2.0]]


def test_nothing_sums_to_nothing():
    assert reduce_sum([]) == []
    assert reduce_sum([None, None]) == [None, None]


@pytest.mark.parametrize(("count", "total", "weight"), [(3, 8, 0.375), (0, 8, 0.0), (8, 8, 1.0)])
def test_a_share_weighs_by_samples(count, total, weight):
    share = ReplicaBatch(tf.constant(count), tf.constant(total))
    assert float(share.weight) == weight


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_the_inverse_weight_undoes_the_weight(dtype):
    share = ReplicaBatch(tf.constant(2), tf.constant(8))
    assert share.inverse_weight(dtype).dtype == dtype
    assert float(share.inverse_weight(dtype)) == 4.0


def test_the_inverse_weight_of_nothing_is_zero():
    assert float(ReplicaBatch(tf.constant(0), tf.constant(8)).inverse_weight("float32")) == 0.0


def test_a_weighted_loss_is_known_by_its_optimizer():
    share, one, other = ReplicaBatch(tf.constant(1), tf.constant(2)), object(), object()
    share.record_weighted_loss(one)
    assert share.loss_is_weighted(one)
    assert not share.loss_is_weighted(other)


def test_shares_nest_and_end_with_an_exception():
    outer = ReplicaBatch(tf.constant(1), tf.constant(2))
    inner = ReplicaBatch(tf.constant(1), tf.constant(3))
    assert current_replica_batch() is None
    with step_scope(replica_batch=outer):
        with contextlib.suppress(KeyError), step_scope(replica_batch=inner):
            assert current_replica_batch() is inner
            raise KeyError
        assert current_replica_batch() is outer
    assert current_replica_batch() is None


def test_each_thread_has_its_own_share():
    seen = []
    with step_scope(replica_batch=ReplicaBatch(tf.constant(1), tf.constant(2))):
        thread = threading.Thread(target=lambda: seen.append(current_replica_batch()))
        thread.start()
        thread.join()
    assert seen == [None]
