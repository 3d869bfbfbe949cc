"""`phalanx.fit` in a worker as `phalanx run` prepares it."""

from __future__ import annotations

import os

import keras

import phalanx
from phalanx.cluster.spec import WorkerSpec
from phalanx.worker import bootstrap
from step_time.laps import Lap
from step_time.meter import fit_block
from step_time.place import Place
from step_time.workload import keras_model


class Contender:
    def __init__(self, place: Place) -> None:
        spec = WorkerSpec(
            rank=place.rank,
            world_size=place.world_size,
            addresses=place.addresses if place.world_size > 1 else (),
            threads=1,
            seed=1,
        )
        os.environ.update(spec.to_environment())
        bootstrap.prepare(spec)
        self._models = {}

    def block(self, name: str, steps: int, warm_up: int) -> Lap:
        if name not in self._models:
            self._models[name] = keras_model(keras, name)
        return fit_block(keras, phalanx.fit, name, self._models[name], steps)
