"""What a worker of `phalanx predict` and `phalanx evaluate` computes, and writes."""

import io
import json
import os
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.errors import ConfigurationError, DataError
from phalanx.prediction.input_files import find_files
from phalanx.prediction.outputs import file_of, named_outputs
from phalanx.prediction.plan import (
    EVALUATION,
    MANIFEST,
    ModelRequest,
    PredictionPlan,
    complete_parts,
    digest_of,
)
from phalanx.prediction.worker import Predictor, evaluate, predict

BATCH = 8
ROWS = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")


@keras.saving.register_keras_serializable("phalanx_test_prediction_worker")
class Subclassed(keras.Model):
    """It does not say what it returns."""

    def __init__(self, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(3)

    def call(self, rows):
        return self.dense(rows)


@keras.saving.register_keras_serializable("phalanx_test_prediction_worker")
class Ragged(Subclassed):
    def call(self, rows):
        outputs = self.dense(rows)
        lengths = tf.fill([tf.shape(outputs)[0]], 3)
        return tf.RaggedTensor.from_row_lengths(tf.reshape(outputs, [-1]), lengths)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").mkdir()
    np.save("rows/a.npy", ROWS)
    return tmp_path


def touch_later():
    """Give the rows another time of change, and their size and content back."""
    os.utime("rows/a.npy", (1, 1))


def saved(model):
    model(ROWS[:1])
    model.save("model.keras")
    return model


def text_model():
    """Keras says of `StringLookup` that it returns integers."""
    numbers = keras.Input((4,))
    classes = keras.ops.argmax(keras.layers.Dense(3)(numbers), -1)
    words = ["cat", "dog", "mouse"]
    names = keras.layers.StringLookup(vocabulary=words, invert=True, num_oov_indices=0)(classes)
    return keras.Model(numbers, names)


def request_for(given="rows", **options):
    files = find_files(given, has_source=False)
    return ModelRequest(model="model.keras", files=files, batch_size=BATCH, **options)


def predicted(parts, **options):
    plan = PredictionPlan(
        model_sha256="5" * 64,
        request=request_for(**options),
        format="npy",
        parts_per_file=parts,
    )
    predictor = Predictor(plan)
    return [predictor.predict(part)["output"] for part in plan.parts]


@pytest.mark.parametrize("make", [Subclassed, text_model])
def test_parts_without_rows_are_as_those_with_rows(make):
    """3 batches in 8 parts; the model does not say what it returns, or says it wrongly."""
    saved(make())
    (whole,) = predicted(1)
    parts = predicted(8)
    assert sorted(len(part) for part in parts) == [0, 0, 0, 0, 0, 4, 8, 8]
    assert {part.shape[1:] for part in parts} == {whole.shape[1:]}
    assert {part.dtype.kind for part in parts} == {whole.dtype.kind}
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_a_part_without_rows_takes_its_shape_from_a_whole_batch():
    """A model of a fixed batch size takes no single row."""
    np.save("rows/a.npy", ROWS[: 2 * BATCH])
    inputs = keras.Input(batch_shape=(BATCH, 4))
    saved_model = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    saved_model.save("model.keras")
    assert [part.shape for part in predicted(3)] == [(0, 3), (8, 3), (8, 3)]


def test_a_file_without_rows_is_as_another_one():
    saved(Subclassed())
    np.save("rows/b.npy", ROWS[:0])
    a, b = predicted(1)
    assert (a.shape, b.shape, b.dtype) == ((20, 3), (0, 3), a.dtype)


def test_no_file_has_a_row():
    np.save("rows/a.npy", ROWS[:0])
    saved(keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]))
    (empty,) = predicted(1)
    assert (empty.shape, empty.dtype) == ((0, 3), np.float32)
    saved(Subclassed())
    with pytest.raises(DataError, match=r"1 file\(s\), none of which has a row; .*Give a file"):
        predicted(1)


def test_ragged_outputs_are_refused():
    saved(Ragged())
    with pytest.raises(DataError, match=r"model's 'output' as an array; found a RaggedTensor\."):
        predicted(1)


def test_a_class_that_nothing_registers():
    saved(Subclassed())
    with keras.saving.custom_object_scope({}):
        objects = keras.saving.get_custom_objects()
        name = keras.saving.get_registered_name(Subclassed)
        kept = objects.pop(name)
        try:
            with pytest.raises(ConfigurationError, match=r"Cannot load MODEL .* with --import\."):
                predicted(1)
        finally:
            objects[name] = kept


def test_a_function_that_its_module_does_not_have(place, monkeypatch):
    saved(Subclassed())
    monkeypatch.syspath_prepend(place)
    (place / "some_inputs.py").write_text("rows = 1\n")
    with pytest.raises(ConfigurationError, match=r"--map asks for .*'scale' of .*; found none of"):
        predicted(1, map="some_inputs:scale")
    with pytest.raises(ConfigurationError, match=r"--source asks for .*'rows' of .*; found 1\."):
        predicted(1, source="some_inputs:rows")


@pytest.mark.parametrize("names", [("file", "allow_pickle"), ("a", "b/0"), ("x", "self")])
def test_outputs_have_any_names(names):
    arrays = {name: np.full((2, 3), number) for number, name in enumerate(names)}
    ending, content = file_of(arrays, "npy")
    assert ending == "npz"
    with np.load(io.BytesIO(content)) as found:
        assert found.files == list(names)
        for name in names:
            np.testing.assert_array_equal(found[name], arrays[name])


def test_columns_of_one_name_are_refused():
    arrays = {"a": np.zeros((2, 2)), "a_1": np.zeros(2)}
    with pytest.raises(DataError, match=r"outputs a, a_1 as CSV; .* 'a_1'\. Use --format npy"):
        file_of(arrays, "csv")


def test_outputs_of_a_list_have_the_names_of_the_model():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, [keras.layers.Dense(1, name=name)(inputs) for name in "pq"])
    found = named_outputs(model, model.predict(ROWS, verbose=0))
    assert {name: array.shape for name, array in found.items()} == {"p": (20, 1), "q": (20, 1)}


def chief(place):
    return types.SimpleNamespace(is_chief=True, run_dir=place, rank=0, attempt=0)


def plan_in(folder):
    """A plan in the output, as `phalanx predict` writes it."""
    plan = PredictionPlan(
        model_sha256=digest_of("model.keras"), request=request_for(), format="npy", parts_per_file=2
    )
    folder.write(MANIFEST, plan.to_json())


def test_a_model_that_changes_after_the_start_is_refused(place):
    saved(Subclassed())
    folder = StorageDir.at(place / "out")
    plan_in(folder)
    saved(Subclassed())
    with pytest.raises(ConfigurationError, match=r"MODEL model\.keras has changed"):
        predict(folder, chief(place))
    assert not complete_parts(folder)
    plan_in(folder)
    predict(folder, chief(place))
    assert len(complete_parts(folder)) == 2


@pytest.mark.parametrize("change", [lambda: np.save("rows/a.npy", ROWS[:9]), touch_later])
def test_a_file_that_changes_after_the_start_is_refused(place, change):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    saved(model)
    folder = StorageDir.at(place / "out")
    plan_in(folder)
    change()
    with pytest.raises(DataError, match=r"rows/a\.npy has changed") as raised:
        predict(folder, chief(place))
    assert "It was in a-00000-of-00002" in "".join(raised.value.__notes__)
    assert not complete_parts(folder)


def test_a_file_that_changes_while_it_is_evaluated_is_refused(place):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    model.save("model.keras")
    np.savez("test.npz", x=ROWS, y=ROWS)
    request = request_for("test.npz")
    np.savez("test.npz", x=ROWS[:9], y=ROWS[:9])
    with pytest.raises(DataError, match=r"test\.npz has changed"):
        evaluate(request, chief(place))
    assert not (place / EVALUATION).exists()


def test_a_metric_with_a_value_for_each_class(place):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
    metrics = ["accuracy", keras.metrics.F1Score()]
    model.compile("sgd", "categorical_crossentropy", metrics=metrics)
    model.save("model.keras")
    labels = np.eye(3, dtype="float32")[np.arange(20) % 3]
    np.savez("test.npz", x=ROWS, y=labels)
    evaluate(request_for("test.npz"), chief(place))
    found = json.loads((place / EVALUATION).read_text())["metrics"]
    expected = model.evaluate(ROWS, labels, BATCH, verbose=0, return_dict=True)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)
    assert len(found["f1_score"]) == 3


def test_samples_without_labels(place):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    model.save("model.keras")
    with pytest.raises((ValueError, AttributeError), match="None") as raised:
        evaluate(request_for(), chief(place))
    assert any("The samples have no labels" in note for note in raised.value.__notes__)
