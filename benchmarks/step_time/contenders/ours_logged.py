"""`phalanx.fit` with the gradient logger as it comes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import keras

import phalanx
from phalanx.callbacks import GradientLogger
from step_time.contenders import ours
from step_time.laps import Lap
from step_time.meter import fit_block
from step_time.workload import keras_model


class Contender(ours.Contender):
    def block(self, name: str, steps: int, warm_up: int) -> Lap:
        if name not in self._models:
            self._models[name] = keras_model(keras, name)
        with tempfile.TemporaryDirectory() as folder:
            logs = Path(folder)
            growth = Growth(logs)
            callbacks = [self.logger(logs), growth]
            model = self._models[name]
            lap = fit_block(keras, phalanx.fit, name, model, steps, callbacks)
            return Lap(
                wall=lap.wall,
                cpu=lap.cpu,
                memory=lap.memory,
                written=(size_of(logs) - growth.before) / steps,
            )

    def logger(self, logs: Path) -> GradientLogger:
        return GradientLogger(log_dir=logs)


class Growth(keras.callbacks.Callback):
    """Notes how large a folder's files are after the first epoch."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.before = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.before = size_of(self._folder)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
