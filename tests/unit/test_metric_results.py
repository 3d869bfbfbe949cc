"""What a step returns of results of metrics: which values are computed of nothing else."""

import pytest
import tensorflow as tf

from phalanx.gradients.metric_results import MetricResult, derived_result


class Counted:
    """A metric whose result is one number."""

    def __init__(self, value):
        self.value = value

    def result(self):
        return tf.constant(self.value)


DERIVED = {
    "a root": (lambda a, b: tf.sqrt(a), 2.0),
    "a sum with a factor": (lambda a, b: a + 0.5 * b, 12.0),
    "a quotient": (lambda a, b: tf.math.divide_no_nan(b, a), 4.0),
    "itself, elsewhere": (lambda a, b: tf.identity(a), 4.0),
    "after another operation": (lambda a, b: _after(a, b), 17.0),
}


def _after(a, b):
    with tf.control_dependencies([tf.random.uniform(())]):
        return b + 1.0


@pytest.mark.parametrize("name", DERIVED)
def test_it_is_computed_of_what_the_metrics_hold_now(name):
    compute, wanted = DERIVED[name]
    a, b = Counted(1.0), Counted(1.0)
    with tf.Graph().as_default():
        noted = [(metric.result(), MetricResult(metric)) for metric in (a, b)]
        derived = derived_result(compute(*(tensor for tensor, _ in noted)), noted)
    a.value, b.value = 4.0, 16.0
    assert float(tf.function(derived.compute)()) == wanted
    assert set(derived.metrics) <= {a, b}


OTHERWISE = {
    "of the batch too": lambda a, x: a + tf.reduce_sum(x),
    "of the batch alone": lambda a, x: tf.reduce_mean(x),
    "a constant": lambda a, x: tf.constant(1.0) + 1.0,
    "random": lambda a, x: a + tf.random.uniform(()),
    "in a function": lambda a, x: tf.function(lambda v: v * 2)(a),
    "no tensor": lambda a, x: 3.0,
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_needs_anything_else_is_none(name):
    metric = Counted(1.0)
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, (None,))
        result = metric.result()
        assert derived_result(OTHERWISE[name](result, x), [(result, MetricResult(metric))]) is None


class Variable:
    """A metric that holds a variable."""

    def __init__(self):
        self.value = tf.Variable(1.0)

    def result(self):
        return self.value.read_value()


def test_what_needs_a_result_from_before_an_update_is_none():
    metric, found = Variable(), []

    @tf.function(autograph=False)
    def step():
        before = metric.result()
        metric.value.assign_add(2.0)
        after = metric.result()
        noted = [(one, MetricResult(metric)) for one in (before, after)]
        found.extend(derived_result(one, noted) for one in (after - before, 2 * before, 2 * after))

    step.get_concrete_function()
    gain, twice_before, twice_after = found
    assert gain is None
    assert twice_before is None
    assert float(tf.function(twice_after.compute)()) == 2.0


class OfSuper(Counted):
    """A metric whose result is a dictionary with the result of the class that it extends."""

    def result(self):
        return {"whole": super().result(), "half": super().result() / 2}


def test_the_result_of_super_is_no_dictionary():
    metric = OfSuper(3.0)
    assert float(MetricResult(metric).compute()) == 3.0
    assert float(MetricResult(metric, ("half",)).compute()) == 1.5
