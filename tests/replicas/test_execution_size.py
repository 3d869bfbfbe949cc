"""Steps that run several in one call: the same bits, and a stop where something looks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import phalanx
from phalanx.callbacks import AggregatedLogger, Callback, Checkpoint, GradientLogger, every_n_steps
from phalanx.testing.chaos import Chaos
from phalanx.training import execution_size
from phalanx.training.log_requirements import watches_batches
from phalanx.training.step_function import StepFunction

ROWS, BATCH, EPOCHS = 203, 4, 3
STEPS = 51
WARM = 3


class EveryBatch(keras.callbacks.Callback):
    """Has a hook, so that steps run one by one."""

    def on_train_batch_end(self, batch, logs=None):
        pass


@pytest.fixture
def sizes(monkeypatch):
    """The sizes of all executions; the first choice comes early and always pays."""
    monkeypatch.setattr(execution_size, "FIRST_READING", 1)
    monkeypatch.setattr(execution_size, "SECOND_READING", WARM)
    monkeypatch.setattr(execution_size, "LEAST_STEPS", 0)
    monkeypatch.setattr(execution_size, "SECONDS", 60.0)
    monkeypatch.setattr(execution_size, "_SECONDS_SAVED", 1e9)
    requested, plain = [], StepFunction.on_iterator

    def on_iterator(self, iterator, steps):
        requested.append(steps)
        return plain(self, iterator, steps)

    monkeypatch.setattr(StepFunction, "on_iterator", on_iterator)
    return requested


def arrays():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 6)).astype("float32")
    return x, (x.sum(axis=1, keepdims=True) > 0).astype("float32")


def dataset(*, known=True):
    data = tf.data.Dataset.from_tensor_slices(arrays()).shuffle(50, seed=2).batch(BATCH)
    return data if known else data.filter(lambda x, y: True)


def train(data, *callbacks, replicas=1, **options):
    keras.utils.set_random_seed(5)
    devices = [f"CPU:{number}" for number in range(replicas)]
    with tf.distribute.MirroredStrategy(devices).scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(8, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(1, activation="sigmoid"),
            ]
        )
        rate = keras.optimizers.schedules.ExponentialDecay(0.01, 10, 0.9)
        optimizer = keras.optimizers.Adam(rate, use_ema=True, gradient_accumulation_steps=2)
        model.compile(optimizer, "binary_crossentropy", metrics=["accuracy", "AUC"])
        history = phalanx.fit(
            model, *data, epochs=EPOCHS, verbose=0, callbacks=list(callbacks), **options
        ).history
    variables = [v.numpy() for v in [*model.variables, *model.optimizer.variables]]
    return history, variables


def assert_same_bits(one, other):
    assert one[0] == other[0]
    for found, expected in zip(one[1], other[1], strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.full), 2])
def test_arrays_have_the_same_bits(sizes, replicas):
    options = {"replicas": replicas, "batch_size": BATCH}
    one_by_one = train(arrays(), EveryBatch(), **options)
    assert set(sizes) == {1}
    sizes.clear()
    together = train(arrays(), **options)
    assert sizes == [*[1] * (WARM + 1), STEPS - WARM - 1, STEPS, STEPS]
    assert_same_bits(together, one_by_one)


@pytest.mark.parametrize("known", [True, pytest.param(False, marks=pytest.mark.full)])
def test_datasets_have_the_same_bits(sizes, known):
    one_by_one = train((dataset(known=known),), EveryBatch())
    sizes.clear()
    together = train((dataset(known=known),))
    assert max(sizes) >= STEPS - WARM - 1
    assert_same_bits(together, one_by_one)


def test_what_looks_at_a_step_ends_an_execution(sizes, tmp_path):
    saved = Checkpoint(tmp_path / "saved", every=every_n_steps(20), max_to_keep=99)
    logged = AggregatedLogger(every_n_steps=15)
    looked = GradientLogger(log_dir=tmp_path / "logs", every_n_steps=25, max_overhead=None)
    one_by_one = train(arrays(), EveryBatch(), batch_size=BATCH)
    sizes.clear()
    together = train(arrays(), saved, logged, looked, batch_size=BATCH)
    assert max(sizes) > 5
    steps = list(phalanx.checkpoint.verify(tmp_path / "saved"))
    assert steps == [20, 40, 60, 80, 100, 120, 140, STEPS * EPOCHS]
    assert_same_bits(together, one_by_one)


def test_the_users_number_is_kept(sizes):
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=4)
    phalanx.fit(model, *arrays(), batch_size=BATCH, epochs=2, verbose=0)
    assert max(sizes) == 4


class Declares(Callback):
    needs_every_batch = False

    def on_train_batch_end(self, batch, logs=None):
        pass


class Begins(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        pass


@pytest.mark.parametrize(
    ("callback", "watches"),
    [
        (keras.callbacks.EarlyStopping, False),
        (lambda: keras.callbacks.ModelCheckpoint("a.keras"), False),
        (lambda: keras.callbacks.ModelCheckpoint("a.keras", save_freq=3), True),
        (lambda: keras.callbacks.BackupAndRestore("a"), False),
        (lambda: keras.callbacks.BackupAndRestore("a", save_freq=3), True),
        (keras.callbacks.TensorBoard, False),
        (lambda: keras.callbacks.TensorBoard(update_freq=5), True),
        (lambda: keras.callbacks.TensorBoard(update_freq="batch"), True),
        (lambda: keras.callbacks.TensorBoard(write_steps_per_second=True), True),
        (keras.callbacks.TerminateOnNaN, True),
        (keras.callbacks.ProgbarLogger, False),
        (lambda: keras.callbacks.LambdaCallback(on_epoch_end=print), False),
        (lambda: keras.callbacks.LambdaCallback(on_train_batch_end=print), True),
        (lambda: keras.callbacks.LambdaCallback(on_train_batch_begin=print), True),
        (EveryBatch, True),
        (Begins, True),
        (Declares, False),
        (lambda: AggregatedLogger(every_n_steps=3), False),
        (GradientLogger, False),
        (lambda: Chaos(()), True),
    ],
)
def test_which_callbacks_must_see_every_batch(callback, watches):
    assert watches_batches(callback()) is watches
