"""What is seen of a step that runs again: where an operation belongs, and which is the first."""

import numpy as np
import tensorflow as tf

from phalanx.diagnostics.debug.nonfinite_rows import Range, Trace


def wrongs(trace):
    return [(wrong.phase, wrong.layer, wrong.operation) for wrong in trace.wrongs]


def test_the_first_operation_of_each_layer_and_phase_is_kept():
    trace, fine, bad = Trace(), tf.constant([1.0, -2.0]), tf.constant([1.0, np.nan])
    trace.on_operation("Outside", [fine], [bad])
    trace.on_enter("model", [fine])
    trace.on_enter("a", [fine])
    trace.on_operation("Fine", [fine], [fine])
    trace.on_operation("Passes it on", [bad], [bad])
    trace.on_operation("Log", [fine, tf.constant([1])], [fine, bad])
    trace.on_operation("Sqrt", [fine], [bad])
    trace.on_leave("a", [bad])
    trace.on_operation("Identity", [fine], [bad])
    trace.on_operation("Exp", [fine], [bad])
    trace.on_leave("model", [fine])
    trace.on_gradient("a", "out", fine)
    trace.on_operation("LogGrad", [fine], [bad])
    trace.on_gradient("a", "in", fine)
    trace.on_operation("Between", [fine], [bad])
    assert wrongs(trace) == [
        ("forward", "outside of any layer", "Outside"),
        ("forward", "a", "Log"),
        ("forward", "model", "Exp"),
        ("backward", "a", "LogGrad"),
        ("backward", "outside of any layer", "Between"),
    ]
    assert [(call.name, call.nonfinite_rows) for call in trace.calls] == [
        ("a", [1]),
        ("model", None),
    ]
    assert [len(array) for array in trace.wrongs[1].inputs] == [2], "numbers alone"


def test_a_range_is_that_of_finite_numbers_and_the_largest_may_be_negative():
    found = Range.of(np.array([np.inf, -5.0, 2.0, np.nan], np.float32))
    assert (found.least, found.greatest, found.largest) == (-5.0, 2.0, 5.0)
    assert (found.nonfinite, found.size) == (2, 4)
