"""What src/phalanx/keras_compat/server_*.py relies on in Keras and TensorFlow still is so."""

import inspect
import re

import keras
import pytest
import tensorflow as tf

from phalanx.keras_compat.ps_updates import ROW_BY_ROW
from phalanx.worker.strategies.parameter_server import partitioner

Optimizer = keras.optimizers.Optimizer
PLAIN = next(base for base in Optimizer.__mro__ if base.__module__.endswith("base_optimizer"))


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_keras_counts_by_reading_and_assigning():
    """The day it adds atomically, `assign_add` need not be replaced."""
    assert "self.assign(self + value)" in inspect.getsource(keras.Variable.assign_add)
    assert parameters(keras.Variable.assign_add) == ["self", "value"]
    assert parameters(keras.Variable.assign_sub) == ["self", "value"]


def test_gradients_are_clipped_and_applied_where_we_do_it():
    assert parameters(Optimizer._backend_apply_gradients) == [
        "self",
        "grads",
        "trainable_variables",
    ]
    source = inspect.getsource(PLAIN._backend_apply_gradients)
    clip, update = source.index("_clip_gradients(grads)"), source.index("_backend_update_step(")
    assert source.index("_apply_weight_decay") > 0
    assert clip > 0
    assert update > 0
    assert "self._iterations.assign_add(1)" in inspect.getsource(PLAIN.apply)


def test_averages_are_read_and_assigned():
    """The day they are added, they need not be moved by us."""
    source = inspect.getsource(PLAIN._update_model_variables_moving_average)
    assert "average.assign(" in source
    assert re.search(r"not_equal\(\s*self\.iterations, 0\s*\)", source)
    variable = keras.Variable([1.0, 2.0])
    optimizer = keras.optimizers.SGD(use_ema=True)
    optimizer.build([variable])
    assert optimizer._trainable_variables == [variable]
    (average,) = optimizer._model_variables_moving_average
    assert tuple(average.shape) == (2,)


@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_the_update_of_a_variable_is_one_method(name):
    kind = getattr(keras.optimizers, name)
    assert len(parameters(kind.update_step)) == 4  # itself, gradient, variable, learning rate
    assert kind._backend_update_step is Optimizer._backend_update_step


def test_one_optimizer_has_a_state_of_all_variables():
    kind = keras.optimizers.Nadam
    assert kind._backend_update_step is not Optimizer._backend_update_step


def test_an_optimizer_finds_a_variable_by_tensorflows():
    variable = keras.Variable([1.0, 2.0])
    optimizer = keras.optimizers.SGD(momentum=0.9)
    optimizer.build([variable])
    key = optimizer._var_key(variable._value)
    assert optimizer._trainable_variables_indices[key] == 0
    assert optimizer._get_variable_index(variable) == 0
    assert [v.path for v in optimizer._variables][-1].endswith("momentum")


def test_an_embedding_reads_its_complete_table():
    source = inspect.getsource(keras.layers.Embedding.call)
    assert "ops.take(self.embeddings, inputs, axis=0)" in source
    layer = keras.layers.Embedding(3, 2)
    layer.build()
    assert layer.embeddings is layer._embeddings


def test_slots_are_made_from_a_reference():
    for kind in (Optimizer, PLAIN):
        made = parameters(kind.add_variable_from_reference)
        assert made == ["self", "reference_variable", "name", "initializer"]


def test_a_variable_is_an_array_by_its_own_method():
    assert parameters(keras.Variable.__array__) == ["self", "dtype"]


def test_a_scope_holds_what_a_step_assigns():
    one, other = keras.Variable(1.0), keras.Variable(2.0)
    with keras.StatelessScope(state_mapping=[(one, tf.constant(5.0))]) as scope:
        one.assign(one + 1.0)
        value = scope.get_current_value(one)
        assert scope.get_current_value(other) is None
    assert float(value) == 6.0
    assert float(one) == 1.0


@pytest.mark.parametrize(
    ("sharding", "shape", "dtype", "shards"),
    [
        ("fixed-shards:2", [10, 4], tf.float32, [2, 1]),
        ("fixed-shards:2", [10], tf.float32, [1]),
        ("fixed-shards:2", [10, 4], tf.int64, [1, 1]),
        ("min-size:1KiB", [256, 4], tf.float32, [3, 1]),
        ("min-size:2KiB", [256, 4], tf.float32, [2, 1]),
        ("min-size:4KiB", [256, 4], tf.float32, [1, 1]),
    ],
)
def test_tables_are_cut_by_the_rule(sharding, shape, dtype, shards):
    cut = partitioner(sharding, servers=3)
    assert list(cut(shape=tf.TensorShape(shape), dtype=dtype)) == shards


def test_nothing_is_cut_where_nothing_is_asked():
    assert partitioner("none", servers=3) is None
