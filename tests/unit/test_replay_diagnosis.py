"""Why an operation gave what is not finite, and what in a step is to blame for it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from replays import ROWS, Of, captured_of, head, replayed, rows

from phalanx.checkpoint.step_capture import CapturedPart, CaptureInfo, StepCapture
from phalanx.diagnostics.debug.diagnosis import cause_of, growth_of
from phalanx.diagnostics.debug.nonfinite_rows import OpCall, Range, Wrong
from phalanx.diagnostics.debug.replay import Replay

ops = keras.ops
BF16 = tf.bfloat16.as_numpy_dtype


def cause(operation, *inputs, output=(np.inf,), dtype="float32", in_float32=None):
    arrays = tuple(np.array(each, "float32") for each in inputs)
    wrong = Wrong(
        phase="forward", layer="m/odd", operation=operation, inputs=arrays,
        output=np.array(output, dtype),
    )  # fmt: skip
    return cause_of(wrong, [], largest_in_float32=in_float32)


@pytest.mark.parametrize(
    ("operation", "inputs", "kind", "printed"),
    [
        ("Log", [[0.5, 0.0]], "logarithm", "1 of 2 numbers that are not above 0, the least 0"),
        ("Log1p", [[-1.0, -0.5]], "logarithm", "1 of 2 numbers that are not above -1"),
        ("Xlogy", [[-3.0, -3.0], [0.0, 2.0]], "logarithm", "1 of 2 numbers"),
        ("Sqrt", [[-1.0, 0.0, 4.0]], "root", "the root of 1 of 3 numbers"),
        ("Rsqrt", [[0.0, 4.0]], "root", "the root of 1 of 2 numbers"),
        ("RealDiv", [[1.0], [0.0, 1.0]], "division", "by 1 of 2 numbers that are 0"),
        ("RealDiv", [[1e30], [1e-30]], "explosion", "up to 1e+30 overflows float32"),
        ("Reciprocal", [[0.0, 1.0]], "division", "by 1 of 2 numbers that are 0"),
        ("Mul", [[1e30], [1e30]], "explosion", "Mul of numbers up to 1e+30 overflows float32"),
    ],
)
def test_the_cause_is_known_by_operation_and_numbers(operation, inputs, kind, printed):
    found = cause(operation, *inputs)
    assert found.kind == kind
    assert printed in found.summary


def test_a_power_divides_overflows_or_takes_a_root():
    inf, nan = np.inf, np.nan
    assert cause("Pow", [0.0, 2.0], [-1.0, -1.0], output=[inf, 0.5]).kind == "division"
    # A square is no division, though a ReLU gave zeros too.
    assert cause("Pow", [0.0, 1e30], 2.0, output=[0.0, inf]).kind == "explosion"
    root = cause("Pow", [-1.0, 0.0, 4.0], 0.5, output=[nan, 0.0, 2.0])
    assert root.kind == "root"
    assert "1 of 3 numbers" in root.summary


def test_what_is_no_number_is_not_called_an_overflow():
    found = cause("Acos", [2.0], output=[np.nan])
    assert found.kind == "unknown"
    assert found.summary == "Acos of numbers up to 2 gives no number in float32"


def test_half_precision_is_to_blame_only_where_float32_stays_finite():
    half = {"output": [np.inf], "dtype": "float16"}
    assert cause("Log", [0.0], **half).kind == "logarithm"
    found = cause("Mul", [300.0], [300.0], in_float32=9e4, **half)
    assert (found.kind, "float16 ends at 65504" in found.summary) == ("float16", True)
    found = cause("Reciprocal", [0.0], in_float32=1e10, output=[np.inf], dtype=BF16)
    assert found.kind == "float16"
    assert "in bfloat16 a small number has become 0: a division by 1 of 1" in found.summary


def test_growth_is_that_of_the_innermost_layers():
    def call(name, largest):
        given = Range(least=-largest, greatest=0.0, nonfinite=0, size=1)
        return OpCall(name=name, inputs=[], outputs=[given])

    calls = [call("m/a/d", 2.0), call("m/a", 7.0), call("m/ab", 3.0), call("m", 9.0)]
    assert growth_of(calls) == [("m/a/d", 2.0), ("m/ab", 3.0)]


def model_of(*layers, dtype=None):
    model = keras.Sequential([keras.Input((4,), dtype=dtype), *layers], name="m")
    model.compile(keras.optimizers.SGD(), "mse")
    return model


def two_parts(model, batches, *, bad=(False, False), counts=(ROWS, ROWS), places=()):
    """What a worker keeps that holds replicas 2 and 3 of 4."""
    base = captured_of(model, rows())
    parts = tuple(
        CapturedPart(replica=2 + i, count=counts[i], start=16 + 8 * i, places=places, is_bad=bad[i])
        for i in range(2)
    )
    about = StepCapture(**{**vars(base.about), "replicas": 4, "total": 32, "parts": parts})
    return CaptureInfo(**{**vars(base), "about": about, "batches": batches})


def test_the_replica_whose_samples_go_wrong_is_found_and_named():
    model = model_of(Of(ops.log, name="odd"), head())
    y = np.ones((ROWS, 1), np.float32)
    fine, odd = (rows(), y), (rows(6, 0.0), y)
    captured = two_parts(model, (fine, odd), places=tuple(f"a.csv:{i}" for i in range(ROWS)))
    found = Replay(model, captured).run()
    assert (found.part.replica, found.phase) == (3, "forward")
    assert [(s.in_batch, s.row, s.place) for s in found.samples] == [(30, None, "a.csv:6")]
    both = two_parts(model, (odd, odd), bad=(False, True))
    assert Replay(model, both).run().part.replica == 3, "the one that was bad is run first"
    # The mean of no row is no number: a row that only stands in is not run.
    model = model_of(keras.layers.BatchNormalization(), head())
    bad = rows(6, np.nan), y
    empty = two_parts(model, ((rows()[:1] * 0, y[:1]), bad), counts=(0, ROWS))
    assert Replay(model, empty).run().part.replica == 3


def test_each_replica_draws_its_own_chance():
    """Dropout lets samples of replica 3 go wrong that replica 2 would have dropped."""
    drawn = []
    layers = [
        keras.layers.Dropout(0.5, seed=1),
        Of(lambda x: (drawn.append(np.array(x)) if tf.executing_eagerly() else None, x)[1]),
    ]
    model = model_of(*layers, head())
    batch = (rows(), np.ones((ROWS, 1), np.float32))
    captured = two_parts(model, (batch, batch), bad=(True, True))
    again = Replay(model, captured)
    drawn.clear()
    again.run()
    again.run()
    first, second, *repeated = drawn
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(repeated, [first, second])


@pytest.mark.parametrize(
    ("recorded", "named"), [("m/head/kernel", "m/head/kernel"), ("m/missing", "m/first/kernel")]
)
def test_the_variable_that_the_training_named_is_named_if_it_is_bad_again(recorded, named):
    layers = keras.layers.Dense(4, name="first"), Of(lambda x: x * 1e30 * 1e30, name="odd"), head()
    model = model_of(*layers)
    base = captured_of(model, rows())
    about = StepCapture(**{**vars(base.about), "variable": recorded})
    assert Replay(model, CaptureInfo(**{**vars(base), "about": about})).run().variable == named


def test_missing_values_that_a_layer_fills_in_are_not_to_blame():
    x = rows(2, np.nan)
    x[5] = -1.0
    fill = Of(lambda x: ops.where(ops.isnan(x), 1.5, x), name="fill")
    found = replayed([fill, Of(ops.log, name="odd"), head()], x)
    assert (found.phase, found.layer, found.cause.kind) == ("forward", "m/odd", "logarithm")
    assert [s.index for s in found.samples] == [5]
    assert replayed([fill, head()], rows(2, np.nan)).phase == "data"


def test_bad_data_is_named_by_its_place_among_several_inputs():
    inputs = [keras.Input((4,), name="a"), keras.Input((4,), name="b")]
    model = keras.Model(inputs, head()(keras.layers.Add()(inputs)), name="m")
    model.compile("sgd", "mse")
    base = captured_of(model, rows())
    batch = ([rows(), rows(3, np.inf)], np.ones((ROWS, 1), np.float32), None)
    found = Replay(model, CaptureInfo(**{**vars(base), "batches": (batch,)})).run()
    assert found.cause.summary == "x[1] holds 4 numbers that are not finite"
    batch = ([rows(), rows()], np.ones((ROWS, 1), np.float32), None)
    assert Replay(model, CaptureInfo(**{**vars(base), "batches": (batch,)})).run().phase == ""


def test_moving_statistics_that_the_step_itself_spoilt_are_not_to_blame():
    model = model_of(keras.layers.BatchNormalization(name="norm"), Of(ops.log, name="odd"), head())
    captured = captured_of(model, rows())
    weights = {
        name: array * np.nan if name.endswith(("moving_mean", "moving_variance")) else array
        for name, array in captured.weights.items()
    }
    found = Replay(model, CaptureInfo(**{**vars(captured), "weights": weights})).run()
    assert (found.phase, found.layer) == ("forward", "m/odd")


def test_a_logarithm_of_0_in_float16_is_no_matter_of_precision():
    layer = Of(ops.log, name="odd", dtype="mixed_float16")
    found = replayed([layer, head(dtype="float32")], rows(5, 0.0))
    assert (found.dtype, found.cause.kind) == ("float16", "logarithm")


def test_a_number_that_belongs_to_no_sample_is_laid_to_no_sample():
    """All together sum up to what is divided by; no sample on its own does."""
    layer = Of(lambda x: x / (ops.sum(ops.sign(x)) - 4.0 * ROWS), name="odd")
    found = replayed([layer, head()], rows())
    assert (found.operation, found.samples) == ("RealDiv", ())


def test_rows_of_what_is_no_batch_are_no_samples():
    """The operation that went wrong gives 4 rows, one for each feature: sample 6 alone did it."""
    layer = Of(lambda x: x + ops.sum(ops.log(ops.transpose(x)[:3]), axis=0)[:, None], name="odd")
    found = replayed([layer, head()], rows(6, 0.0))
    assert found.operation == "Log"
    assert [s.index for s in found.samples] == [6]


@pytest.mark.parametrize(("most", "samples"), [(7, [6]), (6, [])])
def test_so_many_samples_are_tried_by_themselves_and_no_more(most, samples, monkeypatch):
    monkeypatch.setattr("phalanx.diagnostics.debug.replay._MOST_ALONE", most)
    layer = Of(lambda x: x + ops.sum(ops.log(ops.transpose(x)[:3])), name="odd")
    found = replayed([layer, head()], rows(6, 0.0))
    assert [s.index for s in found.samples] == samples


def test_a_branch_that_is_not_taken_still_spoils_the_gradient():
    """The well-known trap of `where`: its gradient is 0 times infinite."""
    layer = Of(lambda x: ops.where(x > 0, ops.log(x), 0.0), name="odd")
    first = keras.layers.Dense(4, name="first", kernel_initializer="identity")
    found = replayed([first, layer, head()], rows(5, 0.0))
    assert (found.phase, found.layer, found.cause.kind) == ("backward", "m/odd", "division")
    assert (found.variable, [s.index for s in found.samples]) == ("m/first/kernel", [5])


def test_the_operation_is_of_the_layer_that_went_wrong_not_of_one_that_fixed_itself():
    fixed = Of(lambda x: ops.where(x > 0, ops.log(x), 0.0), name="fixed")
    odd = Of(lambda x: 1.0 / x, name="odd")
    found = replayed([fixed, odd, head()], rows(5, 0.0))
    assert (found.layer, found.operation) == ("m/odd", "RealDiv")


class Spare(Of):
    """Has a weight that it does not use."""

    def build(self, shape):
        self.spare = self.add_weight(shape=(1,), name="spare")


def test_embeddings_have_gradients_of_rows_and_what_is_not_used_has_none():
    model = model_of(
        keras.layers.Embedding(9, 2, name="rows"),
        keras.layers.Flatten(),
        Spare(lambda x: x * 1e30 * 1e30, name="odd"),
        head(),
        dtype="int32",
    )
    x = np.ones((ROWS, 4), np.int32)
    found = Replay(model, captured_of(model, x)).run()
    assert (found.layer, found.variable) == ("m/odd", "m/rows/embeddings")


def test_a_gradient_of_the_users_own_that_no_operation_spoils():
    @tf.custom_gradient
    def spoilt(x):
        return tf.identity(x), lambda upstream: upstream * tf.constant(np.nan)

    found = replayed([keras.layers.Dense(4, name="first"), Of(spoilt, name="odd"), head()], rows())
    assert (found.phase, found.layer, found.variable) == ("backward", "", "m/first/kernel")
