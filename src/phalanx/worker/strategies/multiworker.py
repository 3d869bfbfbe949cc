"""The devices of all workers, which TensorFlow connects by TF_CONFIG."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from phalanx.cluster.strategies import check_gpus
from phalanx.worker.strategies.request import StrategyRequest


def make(request: StrategyRequest) -> Any:
    """A `MultiWorkerMirroredStrategy`.

    Raises:
        OptionError: the communication asked for cannot be.
    """
    implementation = tf.distribute.experimental.CommunicationImplementation
    if request.communication == "auto":
        return tf.distribute.MultiWorkerMirroredStrategy()
    check_gpus(request.communication, len(tf.config.list_physical_devices("GPU")))
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=implementation[request.communication.upper()]
    )
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
