"""A step that was not finite, run again: the layer, the operation, the samples and the cause."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from replays import ROWS, Of, captured_of, head, replayed, rows

from phalanx.checkpoint.step_capture import CaptureInfo, captures_in, read_captured, write_captured
from phalanx.diagnostics.debug.nonfinite_rows import Range
from phalanx.diagnostics.debug.replay import Replay
from phalanx.diagnostics.debug.replay_main import model_of
from phalanx.errors import ConfigurationError

ops = keras.ops

CASES = {
    "logarithm": (Of(ops.log, name="odd"), rows(5, 0.0), "Log", "forward", "above 0, the least 0"),
    "root": (Of(ops.sqrt, name="odd"), rows(5, -1.0), "Sqrt", "forward", "the root of 4 of 32"),
    "gradient of a root": (
        Of(lambda x: ops.sqrt(ops.square(x * 0.0 + x)), name="odd"),
        rows(5, 0.0), "SqrtGrad", "backward", "the gradient of a root",
    ),
    "division": (Of(lambda x: 1.0 / x, name="odd"), rows(5, 0.0), "RealDiv", "forward", "are 0"),
    "explosion": (Of(ops.exp, name="odd"), rows(5, 200.0), "Exp", "forward", "overflows float32"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_layer_operation_sample_and_cause_are_named(case):
    layer, x, operation, phase, output = CASES[case]
    first = keras.layers.Dense(4, name="first", kernel_initializer="identity")
    found = replayed([first, layer, head()], x)
    assert (found.phase, found.layer, found.operation) == (phase, "m/odd", operation)
    assert [s.index for s in found.samples] == [5]
    assert (found.samples[0].in_batch, found.samples[0].row) == (13, 105)
    assert found.cause.kind == case.split()[-1]
    assert output in found.cause.summary
    assert found.variable == "m/first/kernel"


def test_a_layer_that_overflows_in_float16_is_reported_from_one_that_does_in_float32():
    x = rows(2, 300.0)
    layer = Of(lambda x: x * x, name="odd", dtype="mixed_float16")
    found = replayed([layer, head(dtype="float32")], x)
    assert (found.layer, found.dtype, found.cause.kind) == ("m/odd", "float16", "float16")
    assert [s.index for s in found.samples] == [2]
    assert "gives up to 9e+04" in found.cause.summary
    assert "float16 ends at 65504" in found.cause.summary


def test_a_small_number_that_float16_takes_as_0():
    layer = Of(lambda x: x / (x * 0 + 1e-8), name="odd", dtype="mixed_float16")
    found = replayed([layer, head(dtype="float32")], rows() * 1e-4)
    assert (found.layer, found.operation, found.cause.kind) == ("m/odd", "RealDiv", "float16")
    assert "a division by 32 of 32 numbers that are 0" in found.cause.summary


def test_a_loss_scale_that_overflows_in_the_backward_pass():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        small = keras.initializers.Constant(0.01)
        layers = [keras.layers.Dense(4, name="first", kernel_initializer=small), head()]
        x = rows(6, 100.0)
        y = np.zeros((ROWS, 1), np.float32)
        found = replayed(layers, x, y, scale=2.0**15)
        unscaled = replayed(layers, x, y, scale=1.0)
    finally:
        keras.config.set_dtype_policy("float32")
    assert (found.phase, found.dtype, found.cause.kind) == ("backward", "float16", "float16")
    assert [s.index for s in found.samples] == [6]
    assert unscaled.phase == "", "the scale is that of the kept step, not the optimizer's first"


def test_bad_data_is_named_before_the_layer_in_which_it_shows():
    found = replayed([keras.layers.Dense(4, name="first"), head()], rows(3, np.inf))
    assert (found.phase, found.layer, found.cause.kind) == ("data", "m/first", "data")
    assert [s.index for s in found.samples] == [3]
    assert found.given[0].nonfinite == 4


def test_a_bad_target_shows_in_the_loss():
    y = np.ones((ROWS, 1), np.float32)
    y[7] = np.nan
    found = replayed([head()], rows(), y)
    assert (found.phase, found.layer) == ("data", "mse")
    assert found.cause.summary == "y holds 1 numbers that are not finite"


def test_weights_that_were_bad_before_are_named():
    found = replayed([head()], rows(), weights=[np.full((4, 1), np.nan), np.zeros(1)])
    assert (found.phase, found.variable) == ("weights", "m/head/kernel")


def test_activations_that_grow_from_layer_to_layer():
    layers = [
        keras.layers.Dense(4, name=f"d{i}", kernel_initializer=keras.initializers.Constant(1e5))
        for i in range(9)
    ]
    found = replayed([*layers, head()], rows())
    assert found.cause.kind == "explosion"
    assert "activations grow from" in found.cause.summary
    assert found.layer == "m/d6"


def test_in_a_step_that_is_finite_this_time_nothing_is_found():
    model = keras.Sequential([keras.Input((4,)), head()], name="m")
    model.compile(keras.optimizers.SGD(), "mse")
    found = Replay(model, captured_of(model, rows())).run()
    assert (found.phase, found.layer, found.samples, found.cause) == ("", "", (), None)
    assert [name for name, _ in found.growth] == ["m/head", "mse"]


def test_a_row_that_only_is_a_stand_in_is_left_out():
    model = keras.Sequential([keras.Input((4,)), head()])
    model.compile(keras.optimizers.SGD(), "mse")
    found = Replay(model, captured_of(model, rows(7, np.nan), count=7)).run()
    assert found.phase == ""


def test_dropout_draws_what_it_drew_in_the_step():
    seen = []
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dropout(0.5, seed=1),
            Of(lambda x: (seen.append(x.numpy()) if tf.executing_eagerly() else None, x)[1]),
            head(),
        ]
    )
    model.compile(keras.optimizers.SGD(), "mse")
    model(rows()[:1])
    before = model.layers[0].seed_generator.state.numpy()
    seen.clear()
    model(np.concatenate([rows(), rows()]), training=True)
    drawn = seen[-1][ROWS:]  # the part holds rows 8 to 16
    captured = captured_of(model, rows())  # the seed as it is after the step
    again = Replay(model, captured)
    seen.clear()
    again.run()
    np.testing.assert_array_equal(seen[-1], drawn)
    assert before is not None


def test_a_captured_step_comes_back_from_its_files(tmp_path):
    model = keras.Sequential([keras.Input((4,)), head()])
    model.compile(keras.optimizers.SGD(), "mse")
    base = captured_of(model, rows(), np.array([[b"a"]] * ROWS))
    batch = ({"x": rows(), "h": rows().astype("float16")}, (base.batches[0][1], None))
    bits = tf.constant([1.5, 2.5], tf.bfloat16).numpy()
    captured = CaptureInfo(
        about=base.about, batches=(batch,), weights={**base.weights, "model/9/b": bits},
        paths=base.paths, config=keras.saving.serialize_keras_object(model),
    )  # fmt: skip
    directory = write_captured(tmp_path / "captures", captured)
    assert directory.name == "worker-1-step-3"
    assert captures_in(tmp_path) == captures_in(directory) == [directory]
    read = read_captured(directory)
    assert read.about == captured.about
    assert tf.nest.flatten(read.batches[0])[0].dtype == np.float16
    assert read.batches[0][1][1] is None
    assert read.batches[0][1][0][0, 0] == b"a"
    np.testing.assert_array_equal(read.weights["model/9/b"], bits)
    built = model_of(read)
    assert [w.shape for w in built.weights] == [w.shape for w in model.weights]
    write_captured(tmp_path / "captures", captured)  # the same step of the next attempt
    assert len(captures_in(tmp_path)) == 1


def test_a_model_that_cannot_be_built_asks_for_the_script():
    model = keras.Sequential([keras.Input((4,)), Of(ops.log, name="odd")])
    model.compile("sgd", "mse")
    base = captured_of(model, rows(), why_not="ValueError: no config")
    with pytest.raises(
        ConfigurationError, match=r"no config\). Name the script: phalanx debug replay"
    ):
        model_of(base)
    config = keras.saving.serialize_keras_object(keras.Sequential([keras.Input((4,)), head()]))
    config = json.loads(json.dumps(config).replace('"Dense"', '"NoSuchLayer"'))
    unknown = CaptureInfo(**{**vars(base), "config": config})
    with pytest.raises(ConfigurationError, match="cannot be built from its configuration alone"):
        model_of(unknown)


def test_what_the_operation_was_given_is_reported():
    x = rows(5, 0.0)
    found = replayed([Of(ops.log, name="odd"), head()], x)
    assert (found.phase, found.layer, found.operation) == ("forward", "m/odd", "Log")
    assert found.dtype == "float32"
    assert found.given == (Range(least=0.0, greatest=2.0, nonfinite=0, size=32),)
