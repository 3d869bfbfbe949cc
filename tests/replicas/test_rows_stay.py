"""What a checkpoint holds of a variable stays as it was, though no byte of it was copied.

A canary: TensorFlow's assignments take fresh memory where somebody holds the old.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from phalanx.checkpoint.replica_values import Rows

CHANGES = {
    "assign": lambda v: v.assign(v * 2.0),
    "assign_add": lambda v: v.assign_add(tf.ones_like(v)),
    "scatter": lambda v: v.scatter_sub(tf.IndexedSlices(tf.ones((1, 3)), [1])),
    "rows": lambda v: v[1:2].assign(tf.zeros((1, 3))),
    "apply": lambda v: tf.raw_ops.ResourceApplyGradientDescent(
        var=v.handle, alpha=1.0, delta=tf.ones_like(v)
    ),
}


CASES = [
    (change, compiled)
    for change in CHANGES
    for compiled in (None, False, True)
    if (change, compiled) != ("apply", True)  # XLA has no such kernel of its own: it assigns
]


@pytest.mark.parametrize("rows", [..., slice(1, 3)])
@pytest.mark.parametrize(("change", "compiled"), CASES)
def test_rows_stay_when_the_variable_changes(change, compiled, rows):
    variable = keras.Variable(np.arange(1.0, 13.0).reshape(4, 3), dtype="float32")

    def run():
        CHANGES[change](variable.value)

    function = run if compiled is None else tf.function(run, jit_compile=compiled)
    held = Rows(variable)[rows]
    before = held.copy()
    function()
    function()
    np.testing.assert_array_equal(held, before)
    assert not np.array_equal(variable.numpy()[rows], before)
