"""Whose iterators can be saved: not those that wait for Python."""

import numpy as np
import pytest
import tensorflow as tf

from phalanx.data.adapt import make_batch_source
from phalanx.distributed.topology import ReplicaTopology


def counted():
    yield from range(4)


def numbers():
    return tf.data.Dataset.range(4)


def generated():
    return tf.data.Dataset.from_generator(counted, output_signature=tf.TensorSpec((), tf.int64))


CASES = {  # made in the test: TensorFlow must not begin while tests are collected
    "range": (numbers, True),
    "shuffle": (lambda: numbers().shuffle(4, seed=1).map(lambda n: n + 1), True),
    "generator": (generated, False),
    "function": (
        lambda: numbers().map(lambda n: tf.numpy_function(np.negative, [n], tf.int64)),
        False,
    ),
    "concatenate": (lambda: numbers().concatenate(generated()), False),
    "interleave": (lambda: numbers().interleave(lambda n: tf.data.Dataset.range(n)), True),
}


@pytest.mark.parametrize("name", CASES)
def test_a_dataset_that_calls_python_has_no_state_to_save(name):
    """Python may have given all it had: then it could be saved, and not restored."""
    make, has_state = CASES[name]
    dataset = make().map(lambda n: tf.reshape(n, [1])).batch(2)
    source = make_batch_source(dataset, topology=ReplicaTopology(), seed=0)
    assert source.has_state is has_state


def test_arrays_need_none():
    source = make_batch_source(np.zeros((4, 1)), topology=ReplicaTopology(), seed=0, batch_size=2)
    assert not source.has_state
