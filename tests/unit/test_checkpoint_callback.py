"""The Checkpoint callback: what it refuses, when it is due, and trainings on one device."""

import json
import threading
import types
from contextlib import ExitStack

import keras
import numpy as np
import pytest

import phalanx
from phalanx.callbacks import Checkpoint, every_n_epochs, every_n_seconds, every_n_steps
from phalanx.callbacks.checkpoint import find_checkpoint
from phalanx.checkpoint.async_writer import AsyncWriter
from phalanx.checkpoint.fencing import held
from phalanx.checkpoint.manifest import with_checksum
from phalanx.checkpoint.retry import RetryPolicy
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.checkpoint.writer import ShardWriter
from phalanx.distributed.step_sync import StepSync
from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import (
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointMismatchError,
    ConfigurationError,
    UnavailableError,
)
from phalanx.testing import chaos
from phalanx.training import async_checkpointer, checkpoint_api
from phalanx.training.checkpoint_manager import forget_fits
from phalanx.training.context import CallContext
from phalanx.worker import preemption


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: every_n_steps(0), "0"),
        (lambda: every_n_epochs(1.5), "1.5"),
        (lambda: every_n_seconds(-1), "-1"),
        (lambda: Checkpoint("c", every=300), "300"),
        (lambda: Checkpoint("c", on_failure="ignore"), "'ignore'"),
        (lambda: Checkpoint("c", data="state"), "'state'"),
        (lambda: Checkpoint("c", max_to_keep=0), "0"),
        (lambda: Checkpoint("c", best=("loss", "least")), "least"),
        (lambda: Checkpoint("c", max_retries=-1), "-1"),
        (lambda: find_checkpoint([Checkpoint("c"), Checkpoint("d")]), "found 2: Checkpoint"),
        (lambda: Checkpoint().options.folder({}), "None"),
    ],
)
def test_bad_options_are_refused(make, found):
    with pytest.raises(ConfigurationError, match=found):
        make()


def small(units=2):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units)])
    model.compile("adam", "mse")
    return model


X = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
Y = X[:, :2]


def fit(model, directory, epochs=2, callbacks=(), **options):
    checkpoint = Checkpoint(directory, **{"every": every_n_steps(3), "max_to_keep": 9, **options})
    return phalanx.fit(
        model, X, Y, batch_size=8, epochs=epochs, verbose=0, callbacks=[*callbacks, checkpoint]
    )


def damage(directory):
    for file in directory.glob("step-*/*.safetensors"):
        file.write_bytes(b"other bytes")


def test_a_directory_of_damaged_checkpoints_is_refused(tmp_path):
    fit(small(), tmp_path)
    damage(tmp_path)
    before = steps(tmp_path)
    with pytest.raises(CheckpointCorruptedError, match=f"all of its {len(before)} checkpoints"):
        fit(small(), tmp_path)
    assert steps(tmp_path) == before
    model = small()
    fit(model, tmp_path, resume="restart", max_to_keep=2)
    again = small()
    assert phalanx.checkpoint.restore(again, tmp_path).step == before[-1]
    np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])


def steps(directory):
    return [manifest.step for manifest in phalanx.checkpoint.list(directory)]


def test_steps_that_pass_a_multiple_are_saved_and_the_end_too(tmp_path):
    fit(small(), tmp_path)
    assert steps(tmp_path) == [3, 6, 8]


def test_a_second_fit_of_the_same_model_continues_in_the_same_directory(tmp_path):
    model = small()
    fit(model, tmp_path)
    fit(model, tmp_path)
    assert steps(tmp_path) == [3, 6, 8, 9, 12, 15, 16]


def test_a_second_fit_continues_though_steps_were_skipped(tmp_path):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=3e38)
    model.compile(scaled, "mse")
    fit(model, tmp_path)
    assert model.optimizer.inner_optimizer.iterations.numpy() < 8
    fit(model, tmp_path)
    assert steps(tmp_path) == [3, 6, 8, 9, 12, 15, 16]


def test_a_stop_within_an_epoch_counts_its_last_steps(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 1

    fit(small(), tmp_path, callbacks=[Stop()])
    assert steps(tmp_path) == [2]


def test_a_second_training_needs_a_directory_of_its_own(tmp_path):
    fit(small(), tmp_path)
    with pytest.raises(ConfigurationError, match="come to step 8; this one begins at step 0"):
        fit(small(), tmp_path)


@pytest.mark.process
def test_keras_s_own_fit_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="Keras's own fit"):
        small().fit(X, Y, verbose=0, callbacks=[Checkpoint(tmp_path)])


def test_resume_false_refuses_a_directory_with_checkpoints(tmp_path):
    with pytest.raises(RuntimeError):
        fit(small(), tmp_path, callbacks=[Raises(at=5)])
    with pytest.raises(ConfigurationError, match="step 3"):
        fit(small(), tmp_path, resume=False)


def test_another_model_is_refused_and_left_as_it_is(tmp_path):
    with pytest.raises(RuntimeError):
        fit(small(), tmp_path, callbacks=[Raises(at=5)])
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    before = [w.copy() for w in model.get_weights()]
    with pytest.raises(CheckpointMismatchError, match="model/2/kernel"):
        fit(model, tmp_path)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


class Raises(keras.callbacks.Callback):
    def __init__(self, at):
        super().__init__()
        self.at = at

    def on_train_batch_end(self, batch, logs=None):
        self.at -= 1
        if self.at == 0:
            raise RuntimeError("broken off")


def test_the_best_epoch_is_saved_and_stays(tmp_path):
    class Rates(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.optimizer.learning_rate = 0.0 if epoch < 2 else 10.0

    best = ("loss", "min")
    fit(small(), tmp_path, 6, [Rates()], every=every_n_epochs(5), max_to_keep=1, best=best)
    losses = {m.step: m.metrics["loss"] for m in phalanx.checkpoint.list(tmp_path)}
    assert min(losses, key=losses.get) in (4, 8, 12)
    assert sorted(losses)[-1] == 24
    assert len(losses) == 2


@pytest.mark.parametrize("async_save", [False, True])
def test_a_best_epoch_that_could_not_be_written_is_not_the_best(tmp_path, monkeypatch, async_save):
    """The second of four epochs cannot be written, so the third is the best of those there are."""
    distances = [3.0, 1.0, 2.0, 4.0]

    class Losses(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.optimizer.learning_rate = 0.0
            self.model.weights[0].assign(np.eye(3, 2) * (1 + distances[epoch]))

    real = ShardWriter.store

    def store(self, share):
        if share.snapshot.step == 8:
            raise OSError("no space")
        return real(self, share)

    monkeypatch.setattr(ShardWriter, "store", store)
    options = {"every": every_n_epochs(9), "best": ("loss", "min"), "async_save": async_save}
    fit(small(), tmp_path, 4, [Losses()], max_retries=0, **options)
    saved = {m.step: m for m in phalanx.checkpoint.list(tmp_path)}
    assert list(saved) == [4, 12, 16]
    best = saved[12].metrics["loss"]
    assert [saved[step].state["best"] for step in (12, 16)] == [best, best]


def test_storage_that_fails_is_reported_and_training_continues(tmp_path, caplog):
    (tmp_path / "c").write_text("a file, and no directory")
    fit(small(), tmp_path / "c", max_retries=0)
    assert "could not be written, training continues" in caplog.text


def test_a_preemption_that_cannot_save_does_not_say_that_it_has(tmp_path):
    (tmp_path / "c").write_text("a file, and no directory")
    asks = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: preemption.request() if batch == 1 else None
    )
    try:
        with pytest.raises(CheckpointError, match="save and stop at step"):
            fit(small(), tmp_path / "c", max_retries=0, callbacks=[asks])
    finally:
        preemption.clear()


@pytest.mark.parametrize("nth", [6, 7, 8, 9])
def test_a_checkpoint_that_fails_leaves_no_files(tmp_path, nth):
    plan = (chaos.FailWrites(nth=nth, times=None),)
    fit(small(), f"faulty+file://{tmp_path}", max_retries=0, callbacks=[chaos.Chaos(plan)])
    assert steps(tmp_path)
    with_files = {path.parent for path in tmp_path.glob("step-*/*")}
    assert with_files == {path.parent for path in tmp_path.glob("step-*/manifest.json")}


def test_storage_that_fails_ends_training_where_that_was_asked(tmp_path):
    (tmp_path / "c").write_text("a file, and no directory")
    with pytest.raises(CheckpointError, match='on_failure="raise"'):
        fit(small(), tmp_path / "c", max_retries=0, on_failure="raise")


def test_a_training_that_never_saves_anything_ends(tmp_path, caplog):
    (tmp_path / "c").write_text("a file, and no directory")
    seen = []
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(epoch))
    with pytest.raises(CheckpointError, match="the first 3 could not be written"):
        fit(small(), tmp_path / "c", max_retries=0, epochs=9, callbacks=[note])
    assert seen == [0, 1, 2]  # the fourth is due in the fourth epoch


def test_warnings_of_failures_in_a_row_become_rare(tmp_path, caplog):
    class Spoil(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                for step in range(6, 60, 3):
                    (tmp_path / f"step-{step:08d}").write_text("a file, and no directory")

    fit(small(), tmp_path, max_retries=0, epochs=14, callbacks=[Spoil()])
    warnings = [each for each in caplog.messages if "could not be written" in each]
    counts = [each.partition(" (")[2].split(" ")[0] for each in warnings]
    assert counts == ["", "2", "4", "8", "16"]
    assert "16 in a row have failed; the last that was written is that of step 3" in warnings[-1]


def test_an_owner_that_is_seen_late_ends_training(tmp_path, monkeypatch):
    asked = []

    def held(folder):
        asked.append(folder)
        raise OSError("no answer") if len(asked) == 1 else UnavailableError("in use")

    monkeypatch.setattr(async_checkpointer, "held", held)
    with pytest.raises(UnavailableError, match="in use"):
        fit(small(), tmp_path, max_retries=0)
    assert len(asked) == 2


def test_a_directory_in_use_is_said_to_all_workers(tmp_path, monkeypatch):
    def held(folder):
        raise UnavailableError("in use")

    said = []
    monkeypatch.setattr(async_checkpointer, "held", held)
    monkeypatch.setattr(
        async_checkpointer, "broadcast_int", lambda stage, number: said.append(number) or number
    )
    topology = ReplicaTopology(total=2)
    stage = CallContext(model=None, strategy=None, topology=topology, exit=ExitStack())
    folder = StorageDir.at(tmp_path)
    with pytest.raises(UnavailableError, match="in use"):
        async_checkpointer.writer_of(stage, folder, RetryPolicy())
    assert said == [-1]


def test_a_worker_looks_again_where_storage_fails_at_the_start(tmp_path, monkeypatch):
    """All workers are on one host, which sees at once what the chief wrote."""
    folder = StorageDir.at(tmp_path)
    real, looks = StorageDir.has, []

    def has(self, name):
        looks.append(name)
        if len(looks) == 1:
            raise OSError("no answer")
        return real(self, name)

    monkeypatch.setattr(StorageDir, "has", has)
    monkeypatch.setattr(async_checkpointer, "broadcast_int", lambda stage, number: 1)
    monkeypatch.setattr(
        async_checkpointer, "on_any_worker", lambda strategy, topology, *flags: list(flags)
    )
    on_one_host = types.SimpleNamespace(addresses=("host:1", "host:2"), run_id="", attempt=0)
    monkeypatch.setattr(
        async_checkpointer.WorkerSpec, "from_environment", lambda environment: on_one_host
    )
    topology = ReplicaTopology(first=1, total=2)
    stage = CallContext(model=None, strategy=None, topology=topology, exit=ExitStack())
    policy = RetryPolicy(max_retries=1, sleep=lambda seconds: None)
    with held(folder):
        looks.clear()
        async_checkpointer.writer_of(stage, folder, policy)
    assert len(looks) == 2

    def fails(self, name):
        raise OSError("no answer")

    monkeypatch.setattr(StorageDir, "has", fails)
    with pytest.raises(ConfigurationError, match=r"does not see .* \(no answer\)"):
        async_checkpointer.writer_of(stage, folder, policy)


def test_nothing_that_is_not_finite_is_saved(tmp_path):
    model = small()

    class Spoil(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations.numpy()) == 4:
                self.model.weights[0].assign(np.full((3, 2), np.nan, "float32"))

    with pytest.raises(phalanx_error("NonFiniteError")):
        fit(model, tmp_path, callbacks=[Spoil()])
    assert steps(tmp_path) == [3]


def phalanx_error(name):
    import phalanx.errors

    return getattr(phalanx.errors, name)


def test_save_and_restore_of_a_hand_written_loop(tmp_path):
    model = small()
    model.optimizer.build(model.trainable_variables)
    phalanx.checkpoint.save(model, tmp_path, step=7, epoch=1, state={"note": [1, 2]})
    other = small()
    other.weights[0].assign(np.zeros((3, 2)))
    restored = phalanx.checkpoint.restore(other, tmp_path)
    assert (restored.step, restored.epoch, restored.state) == (7, 1, {"note": [1, 2]})
    np.testing.assert_array_equal(model.get_weights()[0], other.get_weights()[0])
    assert phalanx.checkpoint.verify(tmp_path) == {7: None}
    with pytest.raises(CheckpointError, match="not built"):
        phalanx.checkpoint.restore(keras.Sequential([keras.layers.Dense(2)]), tmp_path)
    with pytest.raises(ConfigurationError, match=r"checkpoint\.save"):
        fit(small(), tmp_path)


def test_a_save_is_done_though_older_ones_cannot_be_removed(tmp_path, monkeypatch):
    def prune(*_, **__):
        raise OSError("busy")

    monkeypatch.setattr(checkpoint_api, "prune", prune)
    model = small()
    model.optimizer.build(model.trainable_variables)
    phalanx.checkpoint.save(model, tmp_path, step=7)
    assert steps(tmp_path) == [7]


def spoil(directory, step, *, written):
    """Cut a checkpoint's tensors short, and have another clock write it."""
    topology = directory / f"step-{step:08d}"
    for shard in topology.glob("*.safetensors"):
        shard.write_bytes(shard.read_bytes()[:-1])
    manifest = json.loads((topology / "manifest.json").read_text())
    (topology / "manifest.json").write_bytes(with_checksum({**manifest, "written": written}))


def test_what_was_just_saved_stays_next_to_later_steps(tmp_path):
    model = small()
    model.optimizer.build(model.trainable_variables)
    for step in (200, 300):
        phalanx.checkpoint.save(model, tmp_path, step=step)
    spoil(tmp_path, 300, written=1e12)
    assert phalanx.checkpoint.restore(model, tmp_path).step == 200
    phalanx.checkpoint.save(model, tmp_path, step=250, max_to_keep=1)
    assert 250 in steps(tmp_path)
    assert phalanx.checkpoint.restore(model, tmp_path).step == 250


def test_what_a_training_that_was_restored_saves_stays(tmp_path):
    with pytest.raises(RuntimeError):
        fit(small(), tmp_path, callbacks=[Raises(at=7)], async_save=False)
    assert steps(tmp_path) == [3, 6]
    spoil(tmp_path, 6, written=1e12)
    again = {"every": every_n_steps(4), "max_to_keep": 1, "async_save": False}
    with pytest.raises(RuntimeError):
        fit(small(), tmp_path, callbacks=[Raises(at=2)], **again)
    assert 4 in steps(tmp_path)
    assert phalanx.checkpoint.restore(small(), tmp_path).step == 4


def test_one_write_at_a_time():
    background, gate, done = AsyncWriter(), threading.Event(), []
    background.start(lambda: (gate.wait(10), done.append(1)))
    assert not background.wait(0.01)
    gate.set()
    background.start(lambda: done.append(2))
    assert background.wait()
    assert done == [1, 2]
    background.start(lambda: 1 / 0)
    background.wait()
    assert background.failed
    assert isinstance(background.take_error(), ZeroDivisionError)
    assert background.take_error() is None


def test_meetings_come_about_once_a_second():
    now = [0.0]
    step_sync = StepSync(None, ReplicaTopology(), clock=lambda: now[0])
    met = []
    for step in range(1, 200):
        now[0] += 0.1
        if step_sync.is_due(step):
            met.append(step)
            assert step_sync.sync(step, from_chief=True, from_any=False) == (True, False)
    gaps = np.diff(met)
    assert met[0] == 1
    assert set(gaps[2:]) <= {9, 10, 11}


def test_the_manifest_says_where_the_training_comes_from(tmp_path):
    fit(small(), tmp_path, epochs=1)
    forget_fits()  # as in the next process
    fit(small(), tmp_path, epochs=2)
    of_step = {m.step: m.state["lineage"] for m in phalanx.checkpoint.list(tmp_path)}
    assert [of_step[step]["resumed_from"] for step in (3, 4, 6, 8)] == [None, None, 4, 4]
    assert {one["version"] for one in of_step.values()} == {phalanx.__version__}


def two_fits(directory, callbacks=(), log=None):
    """Two trainings of one model on data of two lengths, one after the other; its weights."""
    import tensorflow as tf

    model = small()
    rows = tf.data.Dataset.from_tensor_slices((X, Y))
    stops = keras.callbacks.EarlyStopping("loss", patience=5)
    first = [stops] if log is None else [stops, keras.callbacks.CSVLogger(log)]
    options = {"epochs": 3, "verbose": 0}
    checkpoint = Checkpoint(directory, every=every_n_steps(2), async_save=False)
    phalanx.fit(model, rows.take(8).batch(8), callbacks=[*first, checkpoint], **options)
    best = stops.best
    checkpoint = Checkpoint(directory, every=every_n_steps(2), async_save=False)
    stops = keras.callbacks.EarlyStopping("loss", patience=5)
    pairs = rows.shuffle(32, seed=1).batch(4)
    phalanx.fit(model, pairs, callbacks=[stops, *callbacks, checkpoint], **options)
    return best, model.get_weights()


def test_a_second_fit_that_was_broken_off_is_resumed(tmp_path):
    log = tmp_path / "first.csv"
    _, whole = two_fits(tmp_path / "whole")
    forget_fits()
    with pytest.raises(RuntimeError):
        two_fits(tmp_path / "broken", [Raises(at=13)])
    forget_fits()
    log.write_text("epoch,loss\n0,3.0\n1,2.0\n2,1.0\n")
    best, again = two_fits(tmp_path / "broken", log=log)
    assert len(log.read_text().splitlines()) == 4
    assert best is None or best == np.inf  # the callback of a fit that is skipped sees nothing
    for one, other in zip(whole, again, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("break_at", [5, 7])  # the last checkpoint ends an epoch, or is within one
def test_what_hooks_of_an_epoch_s_beginning_do_is_done_once(tmp_path, break_at):
    def train(directory, callbacks=()):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(keras.optimizers.Adam(0.1, use_ema=True), "mse")
        halving = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        callbacks = [halving, swap, *callbacks]
        fit(model, directory, 3, callbacks, every=every_n_steps(2), async_save=False)
        return [*model.get_weights(), model.optimizer.learning_rate.numpy()]

    whole = train(tmp_path / "whole")
    forget_fits()
    with pytest.raises(RuntimeError):
        train(tmp_path / "broken", [Raises(at=break_at)])
    for one, other in zip(whole, train(tmp_path / "broken"), strict=True):
        np.testing.assert_array_equal(one, other)
