"""`tf.function`s that a step calls become part of its graph, unless they must stay functions."""

import functools

import pytest
import tensorflow as tf

from phalanx.keras_compat.inlined_functions import FUNCTION, inlined
from phalanx.keras_compat.patches import Patches

CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def doubled(function):
    @functools.wraps(function)
    def wrapper(*args):
        return 2.0 * function(*args)

    return wrapper


class Object:
    target = "of its own"

    def __call__(self, x):
        return x + 1.0

    @tf.function
    @doubled
    def method(self, x):
        assert self.target == "of its own"
        return self.other(x) if tf.reduce_sum(x) > 0.0 else x

    @tf.function
    def other(self, x):
        for _ in tf.range(3):
            x += 1.0
        return x

    def plain(self, x):
        return x * 3.0


@tf.function
def with_options(x, *, factor=1.0):
    return {"x": x * factor}


OBJECT = Object()  # a method that is a function holds its instance weakly

INLINED = {
    "methods with conditions and loops": OBJECT.method,
    "an object": tf.function(Object()),
    "a bound method": tf.function(Object().plain),
    "a lambda": tf.function(lambda x: x * 2.0),
    "without AutoGraph": tf.function(lambda x: x * 2.0, autograph=False),
    "keywords and a dictionary": lambda x: with_options(x, factor=2.0)["x"],
}
KEPT = {
    "compiled by XLA": tf.function(lambda x: x * 2.0, jit_compile=True),
    "a signature": tf.function(lambda x: x * 2.0, input_signature=[tf.TensorSpec((None,))]),
    "of TensorFlow": tf.function(tf.nn.relu),
    "a partial": tf.function(functools.partial(lambda x, y: x * y, 3.0)),
    "without source code": tf.function(eval("lambda x: x * 2.0")),
}


def traced(function, applies=True):
    """The value on ones, and the types of the operations."""
    with Patches(lambda: {(FUNCTION, "__call__"): inlined(lambda: applies)}):
        graph = tf.__internal__.FuncGraph("step")
        with graph.as_default():
            output = function(tf.ones(2))
        types = [operation.type for operation in graph.get_operations()]
    with tf.compat.v1.Session(graph=graph) as session:
        return session.run(output).tolist(), types


@pytest.mark.parametrize("name", INLINED)
def test_a_function_becomes_part_of_the_graph(name):
    value, types = traced(INLINED[name])
    assert not set(types) & set(CALLS)
    assert value == INLINED[name](tf.ones(2)).numpy().tolist()


@pytest.mark.parametrize("name", KEPT)
def test_a_function_stays_one(name):
    _, types = traced(KEPT[name])
    assert set(types) & set(CALLS)


def test_functions_elsewhere_stay_functions():
    _, types = traced(INLINED["a lambda"], applies=False)
    assert set(types) & set(CALLS)
    assert INLINED["a lambda"](tf.ones(2)).numpy().tolist() == [2.0, 2.0]
