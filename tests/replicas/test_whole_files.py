"""What Keras saves is complete or absent, and what a worker puts aside is nowhere."""

import json
import threading
import time
from types import SimpleNamespace

import keras
import pytest
from small_models import features, small_model, targets

import phalanx
from phalanx.errors import ConfigurationError
from phalanx.keras_compat.atomic_writes import atomic_path, atomic_save_patch, discard_saves_under
from phalanx.keras_compat.callback_adapters import CALLBACK_POLICIES, redirect_writes
from phalanx.keras_compat.variable_conversion import convert_variables_to_numbers

OPTIONS = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}


@pytest.fixture
def _whole():
    with atomic_save_patch:
        yield


class Unwilling(keras.layers.Layer):
    """Fails when it is saved, after other layers were."""

    def save_own_variables(self, store):
        store["started"] = [1.0]
        raise OSError("the disk is full")


def unwilling_model():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), Unwilling()])
    model.compile("sgd", "mse")
    return model


@pytest.mark.usefixtures("_whole")
@pytest.mark.parametrize(
    ("method", "name"),
    [("save", "a.keras"), ("save", "a.h5"), ("save_weights", "a.weights.h5")],
)
def test_a_model_is_saved_under_its_name_and_no_other(method, name, tmp_path):
    path = tmp_path / name
    getattr(small_model(), method)(path)
    assert [p.name for p in tmp_path.iterdir()] == [name]
    if method == "save_weights":
        small_model().load_weights(path)
    else:
        keras.models.load_model(path, compile=False)


@pytest.mark.usefixtures("_whole")
@pytest.mark.parametrize(
    ("method", "name"), [("save", "a.keras"), ("save_weights", "a.weights.h5")]
)
def test_a_saving_that_fails_leaves_what_was_there(method, name, tmp_path):
    path = tmp_path / name
    with pytest.raises(OSError, match="disk is full"):
        getattr(unwilling_model(), method)(path)
    assert list(tmp_path.iterdir()) == []
    getattr(small_model(), method)(path)
    before = path.read_bytes()
    with pytest.raises(OSError, match="disk is full"):
        getattr(unwilling_model(), method)(path)
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert path.read_bytes() == before


@pytest.mark.usefixtures("_whole")
def test_what_is_there_is_not_overwritten_unasked(tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda prompt: "n")
    path = tmp_path / "a.weights.h5"
    path.write_text("precious")
    small_model().save_weights(path, overwrite=False)
    assert path.read_text() == "precious"


@pytest.mark.usefixtures("_whole")
def test_keras_s_own_refusals_stay(tmp_path):
    with pytest.raises(ValueError, match=r"must end in `.weights.h5`"):
        small_model().save_weights(tmp_path / "weights")
    with pytest.raises(ValueError, match="Invalid filepath extension"):
        small_model().save(tmp_path / "model")


@pytest.mark.usefixtures("_whole")
def test_weights_in_shards_are_left_to_keras(tmp_path):
    small_model().save_weights(tmp_path / "a.weights.json", max_shard_size=1)
    assert "a.weights.json" in {p.name for p in tmp_path.iterdir()}


def test_afterwards_keras_is_as_it_was():
    before = keras.Model.save, keras.Model.save_weights, keras.Variable.__int__
    with atomic_save_patch, convert_variables_to_numbers:
        assert keras.Model.save is not before[0]
    assert (keras.Model.save, keras.Model.save_weights, keras.Variable.__int__) == before


def test_a_reader_never_sees_half_a_file(tmp_path):
    path, done, seen = tmp_path / "a.json", threading.Event(), []
    text = json.dumps(list(range(5000)))

    def read():
        while not done.is_set():
            if path.exists():
                seen.append(path.read_text() == text)
            time.sleep(0)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(50):
        with atomic_path(str(path)) as others, open(others, "w") as stream:
            for start in range(0, len(text), 4000):
                stream.write(text[start : start + 4000])
                stream.flush()
    while not seen:
        time.sleep(0.001)
    done.set()
    reader.join()
    assert all(seen)


def test_a_backup_that_breaks_off_leaves_the_one_before(tmp_path, monkeypatch):
    backup = keras.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)
    model = small_model()
    phalanx.fit(model, features(8), targets(8), callbacks=[backup], **OPTIONS)
    before = (tmp_path / "training_metadata.json").read_text()
    assert json.loads(before)["epoch"] == 2
    # In Keras's module alone: threads of other tests use json as well.
    broken = SimpleNamespace(dumps=lambda *_: 1 / 0, loads=json.loads)
    monkeypatch.setattr("keras.src.callbacks.backup_and_restore.json", broken)
    with pytest.raises(ZeroDivisionError):
        phalanx.fit(model, features(8), targets(8), callbacks=[backup], **{**OPTIONS, "epochs": 4})
    monkeypatch.undo()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "latest.weights.h5",
        "training_metadata.json",
    ]
    assert (tmp_path / "training_metadata.json").read_text() == before


def test_a_double_backup_keeps_the_one_before(tmp_path):
    backup = keras.callbacks.BackupAndRestore(
        tmp_path, double_checkpoint=True, delete_checkpoint=False
    )
    phalanx.fit(small_model(), features(8), targets(8), callbacks=[backup], **OPTIONS)
    epochs = {p.name: json.loads(p.read_text())["epoch"] for p in tmp_path.glob("*.json*")}
    assert epochs == {"training_metadata.json": 2, "training_metadata.json.bkp": 1}


@pytest.mark.usefixtures("_whole")
def test_a_model_saved_aside_is_not_written(tmp_path):
    with discard_saves_under(tmp_path):
        small_model().save(tmp_path / "inner" / "a.keras")
        small_model().save_weights(tmp_path / "a.weights.h5")
        assert list(tmp_path.iterdir()) == []
    small_model().save_weights(tmp_path / "a.weights.h5")
    assert [p.name for p in tmp_path.iterdir()] == ["a.weights.h5"]


def all_of_keras(path):
    """One callback of each class that has a manner, without those that need more packages."""
    callbacks = keras.callbacks
    return [
        callbacks.ModelCheckpoint(path / "a.keras", verbose=1),
        callbacks.BackupAndRestore(path / "backup"),
        callbacks.TensorBoard(path / "board", profile_batch=2),
        callbacks.CSVLogger(path / "log.csv"),
        callbacks.RemoteMonitor(),
        callbacks.ProgbarLogger(),
        callbacks.EarlyStopping("loss", verbose=1),
        callbacks.ReduceLROnPlateau("loss", verbose=1),
        callbacks.LearningRateScheduler(lambda epoch: 0.1, verbose=1),
    ]


def test_the_list_of_manners_is_complete(tmp_path):
    covered = {type(c) for c in all_of_keras(tmp_path)} | {keras.callbacks.OrbaxCheckpoint}
    assert {kind for kind, _ in CALLBACK_POLICIES} == covered


def test_what_works_aside_gets_all_back(tmp_path):
    listed = all_of_keras(tmp_path)
    before = [dict(vars(callback)) for callback in listed]
    with redirect_writes(listed):
        changed = [vars(c) for c, was in zip(listed, before, strict=True) if vars(c) != was]
        assert len(changed) == 7
        assert str(tmp_path) not in str(changed)
    assert [vars(callback) for callback in listed] == before


def test_a_class_below_keras_s_works_aside_too(tmp_path):
    class Own(keras.callbacks.CSVLogger):
        pass

    own = Own(tmp_path / "log.csv")
    with redirect_writes([own]):
        assert str(tmp_path) not in own.filename


def test_replicated_variables_are_numbers(mirrored2):
    with mirrored2.scope():
        model = small_model()
    with convert_variables_to_numbers:
        assert int(model.optimizer.iterations) == 0
        assert float(model.optimizer.learning_rate) == pytest.approx(0.1)
        with pytest.raises(TypeError, match="Only scalar arrays"):
            int(model.weights[0])


def readings(monkeypatch, model, callbacks, **options):
    from phalanx.training.metrics import MetricReader

    counted = []
    original = MetricReader.read
    monkeypatch.setattr(
        MetricReader, "read", lambda *a, **k: counted.append(1) or original(*a, **k)
    )
    phalanx.fit(model, features(64), targets(64), callbacks=callbacks, **{**OPTIONS, **options})
    return len(counted)


class GradientSampler(phalanx.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.last = logs


class LooksRarely(GradientSampler):
    logs_every_n_steps = 5


@pytest.mark.parametrize(
    ("make", "between"),
    [
        (lambda path: keras.callbacks.TensorBoard(path), 0),
        (lambda path: keras.callbacks.TensorBoard(path, update_freq=4), 4),
        (lambda path: keras.callbacks.ModelCheckpoint(path / "{epoch}.keras"), 0),
        (lambda path: keras.callbacks.ModelCheckpoint(path / "{loss}.keras", save_freq=8), 2),
        (lambda path: keras.callbacks.BackupAndRestore(path / "b", save_freq=3), 0),
        (lambda path: keras.callbacks.CSVLogger(path / "log.csv"), 0),
        (lambda path: keras.callbacks.TerminateOnNaN(), 16),
        (lambda path: LooksRarely(), 3),
        (lambda path: GradientSampler(), 16),
    ],
)
def test_a_callback_costs_the_readings_it_needs(make, between, mirrored2, tmp_path, monkeypatch):
    with mirrored2.scope():
        model = small_model()
    of_epochs = 2
    assert readings(monkeypatch, model, [make(tmp_path)]) == of_epochs + between


def test_a_place_to_run_that_does_not_exist_is_refused():
    class Own(phalanx.callbacks.Callback):
        runs_on = "anybody"

    with pytest.raises(ConfigurationError, match=r"must be 'all' or 'chief'; found 'anybody'"):
        phalanx.fit(small_model(), features(8), targets(8), callbacks=[Own()], **OPTIONS)
