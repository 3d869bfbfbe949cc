"""How a step is traced whose batch has a static number of rows."""

import keras
import pytest
import tensorflow as tf

from phalanx.gradients.dynamic_rows import RowsOfTraces
from phalanx.gradients.tape_gradients import UsesGradientsError


class Traced:
    """A step on 3 rows, as a trace sees them."""

    def __init__(self, step, *, are_dynamic=True):
        self.rows = RowsOfTraces(are_dynamic=are_dynamic)
        self.shapes = []
        self.step = step
        self.again()

    def again(self):
        def run(data):
            return self.rows.run(lambda: self.on(self.rows.of(data)))

        self.function = tf.function(run, autograph=False)

    def on(self, data):
        self.shapes.append(data.shape[0])
        return self.step(data)

    def trace(self):
        self.function.get_concrete_function(tf.TensorSpec([3, 2]))

    def decide(self, *, are_static=True):
        self.rows.decide(self.trace, self.again, are_static=are_static)


def on_each_row(data):
    return data * 2


def test_a_step_is_traced_with_an_open_dimension():
    traced = Traced(on_each_row)
    traced.decide()
    traced.function(tf.ones([3, 2]))
    assert traced.shapes == [None]
    assert traced.rows.are_known
    assert traced.rows.are_dynamic


def test_a_step_that_needs_its_number_of_rows_gets_it():
    traced = Traced(lambda data: tf.eye(data.shape[0]))
    traced.decide()
    assert traced.function(tf.ones([3, 2])).shape == (3, 3)
    assert traced.shapes == [None, 3]
    assert traced.rows.are_known
    assert not traced.rows.are_dynamic


def test_variables_made_in_a_trace_that_fails_have_their_values():
    variables = []

    def step(data):
        if not variables:
            variables.append(tf.Variable(lambda: tf.constant(5.0)))
        return variables[0] * tf.eye(data.shape[0])

    traced = Traced(step)
    traced.decide()
    assert not traced.rows.are_dynamic
    assert float(traced.function(tf.ones([3, 2]))[0, 0]) == 5.0


def test_an_error_of_each_trace_is_raised_as_the_last_has_it():
    def step(data):
        raise ValueError(f"{data.shape[0]} rows")

    traced = Traced(step)
    with pytest.raises(ValueError, match="3 rows"):
        traced.decide()
    with pytest.raises(ValueError, match="3 rows"):
        traced.trace()


def test_an_error_in_a_sequential_model_is_raised_as_the_first_trace_had_it():
    class Fails(keras.layers.Layer):
        def call(self, x):
            raise ValueError("what is wrong")

    model = keras.Sequential([Fails()])
    traced = Traced(lambda data: model(data))
    with pytest.raises(ValueError, match="what is wrong"):
        traced.decide()


def test_a_step_with_static_shapes_is_traced_once():
    traced = Traced(on_each_row, are_dynamic=False)
    traced.decide()
    assert traced.shapes == [3]


def test_without_a_static_number_nothing_is_decided():
    def step(data):
        raise ValueError("of any shape")

    traced = Traced(step)
    with pytest.raises(ValueError, match="of any shape"):
        traced.decide(are_static=False)
    assert traced.shapes == [None]
    assert not traced.rows.are_known


def test_a_use_of_gradients_is_passed_on():
    def step(data):
        raise UsesGradientsError

    traced = Traced(step)
    with pytest.raises(UsesGradientsError):
        traced.decide()
    assert traced.shapes == [None]
    assert not traced.rows.are_known
