"""Runs of the real command that are sent to real trackers, which write to files or to loopback."""

import os
import subprocess
import sys
import warnings
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import pytest

TRAINING = """
import os, sys
import keras
import numpy as np
import phalanx

class Ends(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2 and phalanx.rank() == 1 and not os.path.exists("ended"):
            open("ended", "w").close()
            os._exit(3)

x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(float(sys.argv[2])), "mse")
callbacks = [
    keras.callbacks.BackupAndRestore("backup"),
    keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True),
    Ends(),
]
if "every" in sys.argv:
    callbacks.append(phalanx.callbacks.GradientLogger(every_n_steps=1, max_overhead=None))
model.fit(x, y, batch_size=8, epochs=4, validation_split=0.2, callbacks=callbacks, verbose=0)
"""
"""Four epochs of four steps on two workers; worker 1 ends once, at the start of the third."""

QUIET = {
    # No test reports to a vendor of a tracker.
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
    "COMET_START_ONLINE": "false",
    "COMET_INTERNAL_SENTRY_DSN": "",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "HF_HUB_OFFLINE": "1",
}


def needs(package, module=None):
    """Imports a tracker's module, or skips the test module where the package is not installed."""
    try:
        version(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed: make test-trackers", allow_module_level=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # What it deprecates is none of ours.
        return import_module(module or package)


class Runs:
    """The command in a directory."""

    def __init__(self, directory, environment):
        self.directory = directory
        self.environment = dict(environment)
        (directory / "train.py").write_text(TRAINING)

    def start(self, *words):
        env = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "phalanx", *words],
            cwd=self.directory,
            env=env | QUIET | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __call__(self, *words, code=0):
        process = self.start(*words)
        out, _ = process.communicate(timeout=300)
        assert process.returncode == code, out
        return out

    def train(self, *options, code=0, gradients="every"):
        """Train with a restart or without, in the run `r`."""
        options = ("--workers", "2", "--seed", "5", "--name", "r", *options)
        return self("run", *options, "train.py", "--lr", "0.05", gradients, code=code)


EPOCHS = [4, 8, 12, 16]
"""The last step of each."""


def check_series(series, *, gradients=tuple(range(1, 17))):
    """What each tracker has of the training.

    Args:
        series: its metrics, name -> (step, value), in the order in which it has them.
        gradients: the steps whose gradients were logged.
    """
    for name, points in series.items():
        steps = [step for step, _ in points]
        assert steps == sorted(set(steps)), (name, steps)
    assert [step for step, _ in series["epoch/val_loss"]] == EPOCHS
    assert tuple(step for step, _ in series["gradients/norm"]) == gradients
    losses = [value for _, value in series["epoch/loss"]]
    assert losses == sorted(losses, reverse=True)
    for rank in (0, 1):
        assert len(series[f"worker_{rank}/gradients/norm"]) == len(gradients)
        assert series[f"worker_{rank}/memory_bytes"][-1][1] > 1e7
