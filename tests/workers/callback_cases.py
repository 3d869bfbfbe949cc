"""What each of Keras's callbacks does in a small training: run by workers and by one device.

A case trains by `fit`, writes under `directory`, and returns what is to be compared.
"""

import csv
import glob
import importlib.util
import json
import os
import zipfile

import numpy as np

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def data(rows, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 4)).astype("float32")
    return x, random.normal(size=(rows, 1)).astype("float32")


def small_model(optimizer=None, **compile_options):
    import keras

    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
    )
    model.compile(optimizer or keras.optimizers.SGD(0.1), "mse", metrics=["mae"], **compile_options)
    return model


def train(fit, callbacks, model=None, **options):
    """Five steps an epoch, the last one short, and a validation; what all must share."""
    model = model or small_model()
    options = {"epochs": 3, "batch_size": 8, "shuffle": False, "verbose": 0, **options}
    options.setdefault("validation_data", data(10, seed=1))
    history = fit(model, *data(37), callbacks=callbacks, **options)
    return {
        "history": history.history,
        "epochs": history.epoch,
        "weights": [v.numpy() for v in model.weights],
        "optimizer": [v.numpy() for v in model.optimizer.variables],
    }


def files_in(directory):
    """Every file, hidden ones too, by its path below `directory`, with what it says."""
    pattern = os.path.join(directory, "**", "*")
    paths = glob.glob(pattern, recursive=True, include_hidden=True)
    return {os.path.relpath(p, directory): read(p) for p in paths if os.path.isfile(p)}


def read(path):
    if path.endswith(".h5"):
        return read_h5(path)
    if path.endswith(".keras"):
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            with archive.open("model.weights.h5") as stored:
                return read_h5(stored)
    if path.endswith(".csv"):
        with open(path) as stream:
            head, *rows = csv.reader(stream)
        return [head, *[[float(value) for value in row] for row in rows]]
    if path.endswith(".json"):
        with open(path) as stream:
            return json.load(stream)
    return None


def read_h5(file):
    import h5py

    found = {}
    with h5py.File(file, "r") as store:
        store.visititems(
            lambda name, node: found.update({name: node[()]}) if hasattr(node, "shape") else None
        )
    return {name: value for name, value in found.items() if "seed" not in name}


@case
def model_checkpoint(fit, directory):
    import keras

    name = os.path.join(directory, "{epoch}-{val_loss:.4f}.keras")
    return train(fit, [keras.callbacks.ModelCheckpoint(name)])


@case
def model_checkpoint_best_weights(fit, directory):
    import keras

    path = os.path.join(directory, "inner", "best.weights.h5")
    best = keras.callbacks.ModelCheckpoint(
        path, save_best_only=True, save_weights_only=True, verbose=1
    )
    trained = train(fit, [best], epochs=4)
    return {**trained, "best": best.best, "path": os.path.relpath(best.filepath, directory)}


@case
def model_checkpoint_every_third_step(fit, directory):
    import keras

    path = os.path.join(directory, "{epoch}-{batch}-{loss:.4f}.weights.h5")
    return train(fit, [keras.callbacks.ModelCheckpoint(path, save_weights_only=True, save_freq=3)])


@case
def backup_and_restore(fit, directory):
    """A training that breaks in its third epoch, and another that resumes from there."""
    import keras

    class Breaks(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise InterruptedError

    def backup():
        return keras.callbacks.BackupAndRestore(directory, delete_checkpoint=False)

    adam = keras.optimizers.Adam
    try:
        train(fit, [backup(), Breaks()], small_model(adam(0.01)), epochs=4)
    except InterruptedError:
        left = sorted(files_in(directory))
    return {**train(fit, [backup()], small_model(adam(0.01)), epochs=4), "left": left}


@case
def backup_and_restore_is_ended_at_the_end(fit, directory):
    import keras

    return train(fit, [keras.callbacks.BackupAndRestore(os.path.join(directory, "backup"))])


@case
def tensorboard(fit, directory):
    import keras

    board = keras.callbacks.TensorBoard(directory, histogram_freq=1, update_freq=2)
    trained = train(fit, [board])
    return {**trained, "log_dir": os.path.relpath(board.log_dir, directory)}


@case
def tensorboard_with_embeddings(fit, directory):
    import keras

    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((4,), dtype="int32"), keras.layers.Embedding(9, 3), keras.layers.Flatten(),
         keras.layers.Dense(1)]
    )  # fmt: skip
    model.compile("sgd", "mse")
    x, y = np.arange(48).reshape(12, 4) % 9, data(12)[1]
    board = keras.callbacks.TensorBoard(directory, embeddings_freq=1, profile_batch=2)
    history = fit(model, x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[board])
    return {"history": history.history, "weights": [v.numpy() for v in model.weights]}


@case
def csv_logger(fit, directory):
    import keras

    path = os.path.join(directory, "log.csv")
    model = small_model()
    train(fit, [keras.callbacks.CSVLogger(path)], model)
    return train(fit, [keras.callbacks.CSVLogger(path, append=True)], model)


@case
def early_stopping(fit, directory):
    import keras

    rising = keras.optimizers.schedules.PiecewiseConstantDecay([10], [0.05, 0.9])
    stops = keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True, verbose=1)
    trained = train(fit, [stops], small_model(keras.optimizers.SGD(rising)), epochs=12)
    return {**trained, "stopped": stops.stopped_epoch, "best": stops.best}


@case
def reduce_lr_on_plateau(fit, directory):
    import keras

    reduces = keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=0.5, verbose=1)
    return train(fit, [reduces], epochs=4)


@case
def learning_rate_scheduler(fit, directory):
    import keras

    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.8, verbose=1)
    return train(fit, [scheduler])


@case
def terminate_on_nan(fit, directory):
    import keras

    x, y = data(40)
    y[17] = np.nan
    model = small_model()
    history = fit(
        model, x, y, batch_size=8, epochs=2, shuffle=False, verbose=0,
        callbacks=[keras.callbacks.TerminateOnNaN()],
    )  # fmt: skip
    return {"epochs": history.epoch, "steps": int(model.optimizer.iterations.numpy())}


@case
def swap_ema_weights(fit, directory):
    import keras

    model = small_model(keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.8))
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    saves = keras.callbacks.ModelCheckpoint(os.path.join(directory, "{epoch}.keras"))
    return train(fit, [swap, saves], model)


@case
def lambda_callback(fit, directory):
    import keras

    seen = []
    trained = train(
        fit,
        [keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen.append((batch, logs["loss"])),
            on_epoch_end=lambda epoch, logs: seen.append((epoch, logs["val_mae"])),
        )],
    )  # fmt: skip
    return {**trained, "seen": seen}


@case
def progbar_logger(fit, directory):
    import contextlib
    import io
    import re

    import keras

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        trained = train(fit, [keras.callbacks.ProgbarLogger()], verbose=1)
    heads = re.findall(r"Epoch \d/\d", printed.getvalue())
    with open(os.path.join(directory, f"{os.getpid()}.json"), "w") as stream:
        json.dump(heads, stream)
    return trained


@case
def remote_monitor(fit, directory):
    import unittest.mock

    import keras

    def post(url, data=None, **_):
        sent = json.loads(data["data"])
        with open(os.path.join(directory, f"{sent['epoch']}-{os.getpid()}.json"), "x") as stream:
            json.dump(sent, stream)

    with unittest.mock.patch("requests.post", post):
        return train(fit, [keras.callbacks.RemoteMonitor()])


def orbax_checkpoint(fit, directory):
    import keras

    saves = keras.callbacks.OrbaxCheckpoint(directory, save_freq=3, max_to_keep=2)
    return train(fit, [saves])


if importlib.util.find_spec("orbax"):
    case(orbax_checkpoint)


def run_all(names, root):
    """Each case in a directory of its own, by whichever `fit` is right here."""
    import keras
    import tensorflow as tf

    import phalanx

    fit = phalanx.fit if tf.distribute.has_strategy() else keras.Model.fit
    found = {}
    for name in names:
        directory = os.path.join(root, name)
        os.makedirs(directory, exist_ok=True)
        found[name] = CASES[name](fit, directory)
    return found
