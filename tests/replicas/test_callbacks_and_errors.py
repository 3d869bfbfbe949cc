"""What callbacks see on several replicas, validation, and what is refused in clear words."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import features, small_model, targets

import phalanx
from phalanx.errors import DataError, TrainingError

OPTIONS = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}


class Recorder(keras.callbacks.Callback):
    """Writes down every hook with its number and logs."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_begin(self, epoch, logs=None):
        self.seen.append(("epoch begins", epoch, {}))

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(("batch begins", batch, {}))

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(("batch ends", batch, dict(logs)))

    def on_test_batch_end(self, batch, logs=None):
        self.seen.append(("test batch ends", batch, dict(logs)))

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(("epoch ends", epoch, dict(logs)))


def recorded(fit, model):
    recorder = Recorder()
    held_out = (features(10, seed=1), targets(10, seed=1))
    fit(model, features(19), targets(19), validation_data=held_out, callbacks=[recorder], **OPTIONS)
    return recorder.seen


@pytest.mark.parametrize("steps_per_execution", [pytest.param(1, marks=pytest.mark.full), 2])
def test_callbacks_see_what_they_see_on_one_device(steps_per_execution, mirrored2):
    expected = recorded(keras.Model.fit, small_model(steps_per_execution=steps_per_execution))
    with mirrored2.scope():
        model = small_model(steps_per_execution=steps_per_execution)
    got = recorded(phalanx.fit, model)
    assert [hook for hook, _, _ in got] == [hook for hook, _, _ in expected]
    if steps_per_execution == 1:  # else Keras numbers batches beyond the end of an epoch
        assert [number for _, number, _ in got] == [number for _, number, _ in expected]
    for (hook, number, logs), (_, _, theirs) in zip(got, expected, strict=True):
        assert logs == pytest.approx(theirs, rel=1e-5), (hook, number)


def test_a_callback_that_only_looks_at_the_end_costs_no_readings(mirrored2, monkeypatch):
    from phalanx.training.metrics import MetricReader

    readings = []
    original = MetricReader.read
    monkeypatch.setattr(
        MetricReader, "read", lambda *a, **k: readings.append(1) or original(*a, **k)
    )
    with mirrored2.scope():
        model = small_model()
    phalanx.fit(model, features(64), targets(64), callbacks=[keras.callbacks.EarlyStopping("loss")],
                **{**OPTIONS, "batch_size": 4})  # fmt: skip
    assert len(readings) == 2


@pytest.mark.parametrize("as_dataset", [False, pytest.param(True, marks=pytest.mark.full)])
def test_some_steps_of_validation_are_the_same_each_time(as_dataset, mirrored2):
    x, y = features(20, seed=1), targets(20, seed=1)
    held_out = tf.data.Dataset.from_tensor_slices((x, y)).batch(4) if as_dataset else (x, y)
    options = {**OPTIONS, "epochs": 3, "validation_data": held_out, "validation_steps": 2}
    if not as_dataset:
        options["validation_batch_size"] = 4
    expected = small_model().fit(features(19), targets(19), **options).history
    with mirrored2.scope():
        model = small_model()
    history = phalanx.fit(model, features(19), targets(19), **options).history
    assert history["val_loss"] == pytest.approx(expected["val_loss"], rel=1e-5)


def test_stopping_in_the_middle_of_an_epoch_stops_there(mirrored2):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 1

    with mirrored2.scope():
        model = small_model()
    history = phalanx.fit(model, features(40), targets(40), callbacks=[Stop()], **OPTIONS)
    assert history.epoch == [0]
    assert int(model.optimizer.iterations.numpy()) == 2


def test_arrays_without_samples_are_refused():
    with pytest.raises(DataError, match="0 samples"):
        phalanx.fit(small_model(), np.zeros((0, 4)), np.zeros((0, 1)), verbose=0)


@pytest.mark.parametrize("call", ["fit", "evaluate", "predict"])
def test_batches_of_unlike_sizes_are_refused_for_stateful_layers(call, mirrored2):
    with mirrored2.scope():
        inputs = keras.Input(batch_shape=(4, 3, 2))
        layer = keras.layers.LSTM(3, stateful=True, name="keeps")
        model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
        model.compile("sgd", "mse")
    x, y = features(6, width=6).reshape(6, 3, 2), targets(6)
    data = (x,) if call == "predict" else (x, y)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"keeps has stateful=True.* 4 rows"):
        getattr(phalanx, call)(model, *data, batch_size=4, verbose=0)


@pytest.mark.parametrize("call", ["fit", "evaluate", "predict"])
def test_data_without_a_batch_is_refused(call, mirrored2):
    with mirrored2.scope():
        model = small_model()
    nothing = tf.data.Dataset.from_tensor_slices((features(3), targets(3))).batch(
        8, drop_remainder=True
    )
    with pytest.raises(DataError, match="no batch"):
        getattr(phalanx, call)(model, nothing, verbose=0)


def test_targets_next_to_a_distributed_dataset_are_refused(mirrored2):
    whole = tf.data.Dataset.from_tensor_slices((features(8), targets(8))).batch(4)
    data = mirrored2.experimental_distribute_dataset(whole)
    with mirrored2.scope():
        model = small_model()
    with pytest.raises(DataError, match="Asked to use y next to a distributed dataset"):
        phalanx.fit(model, data, targets(8), verbose=0)


def test_predicting_a_distributed_dataset_is_refused(mirrored2):
    data = mirrored2.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices(features(8)).batch(4)
    )
    with mirrored2.scope():
        model = small_model()
    with pytest.raises(DataError, match="order cannot be restored"):
        phalanx.predict(model, data, verbose=0)


def test_an_own_train_function_is_refused():
    class Own(keras.Sequential):
        def make_train_function(self, force=False):
            return None

    model = Own([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(TrainingError, match=r"Own overrides make_train_function.*train_step"):
        phalanx.fit(model, features(8), targets(8), verbose=0)


@pytest.mark.parametrize("call", ["fit", "evaluate"])
def test_a_model_that_was_not_compiled_gets_kerass_own_words(call):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="compile"):
        getattr(phalanx, call)(model, features(8), targets(8), verbose=0)
