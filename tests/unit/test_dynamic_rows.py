"""How a step is traced whose batch has a static number of rows."""

import pytest
import tensorflow as tf

from phalanx.gradients.dynamic_rows import RowsOfTraces
from phalanx.gradients.tape_gradients import UsesGradientsError


class Traced:
    """A step on 3 rows, as a trace sees them."""

    def __init__(self, step, wants=lambda rows: False):
        self.rows = RowsOfTraces()
        self.shapes = []
        self.step, self.wants = step, wants
        self.again()

    def again(self):
        def run(data):
            return self.rows.run(lambda: self.on(self.rows.of(data)))

        self.function = tf.function(run, autograph=False)

    def on(self, data):
        self.shapes.append(data.shape[0])
        self.rows.are_wanted |= data.shape[0] is not None and self.wants(data)
        return self.step(data)

    def trace(self):
        self.function.get_concrete_function(tf.TensorSpec([3, 2]))

    def decide(self, *, are_static=True):
        self.rows.decide(self.trace, self.again, are_static=are_static)


def made_lazily():
    """A step that makes a variable in its first trace, of which another then fails."""
    variables = []

    def step(data):
        if not variables:
            variables.append(tf.Variable(lambda: tf.constant(5.0)))
        return data * variables[0] + tf.eye(6)[:, :2]

    return step, variables


def test_a_step_on_each_row_is_traced_once():
    traced = Traced(lambda data: data * 2)
    traced.decide()
    assert traced.shapes == [3]
    assert traced.rows.are_known
    assert not traced.rows.are_dynamic


def test_a_step_that_combines_rows_is_traced_with_an_open_dimension():
    traced = Traced(lambda data: data * 2, wants=lambda data: True)
    traced.decide()
    assert traced.shapes == [3, None]
    assert traced.rows.are_dynamic


def test_a_step_with_the_size_of_the_global_batch_is_traced_with_an_open_dimension():
    step, variables = made_lazily()
    traced = Traced(step)
    traced.decide()
    assert traced.shapes == [3, 3, None]  # A function of TensorFlow that makes variables: twice
    assert traced.rows.are_dynamic
    assert float(variables[0]) == 5.0


def test_a_step_that_needs_a_number_keeps_it():
    traced = Traced(lambda data: tf.eye(data.shape[0]), wants=lambda data: True)
    traced.decide()
    assert traced.shapes == [3, None]
    assert traced.rows.are_known
    assert not traced.rows.are_dynamic
    assert traced.function(tf.ones([3, 2])).shape == (3, 3)


def test_an_error_that_any_trace_has_is_raised_as_the_first_trace_had_it():
    def step(data):
        raise ValueError(f"{data.shape[0]} rows")

    traced = Traced(step)
    with pytest.raises(ValueError, match="3 rows"):
        traced.decide()
    with pytest.raises(ValueError, match="3 rows"):
        traced.trace()


def test_without_a_static_number_nothing_is_decided():
    traced = Traced(lambda data: data * 2, wants=lambda data: True)
    traced.decide(are_static=False)
    assert traced.shapes == [3]
    assert not traced.rows.are_known


def test_a_use_of_gradients_is_passed_on():
    def step(data):
        raise UsesGradientsError

    traced = Traced(step)
    with pytest.raises(UsesGradientsError):
        traced.decide()
    assert not traced.rows.are_known
