"""Keras 3's own `fit`; on several workers under MultiWorkerMirroredStrategy."""

from __future__ import annotations

import contextlib
import os

import keras
import tensorflow as tf

from step_time.laps import Lap
from step_time.meter import fit_block
from step_time.place import Place
from step_time.threads import limit_tensorflow
from step_time.workload import keras_model


class Contender:
    def __init__(self, place: Place) -> None:
        limit_tensorflow()
        self._scope = contextlib.nullcontext
        if place.world_size > 1:
            os.environ["TF_CONFIG"] = place.tf_config()
            self._scope = tf.distribute.MultiWorkerMirroredStrategy().scope
        keras.utils.set_random_seed(1)
        self._models = {}

    def block(self, name: str, steps: int, warm_up: int) -> Lap:
        if name not in self._models:
            with self._scope():
                self._models[name] = keras_model(keras, name)
        return fit_block(keras, keras.Model.fit, name, self._models[name], steps)
