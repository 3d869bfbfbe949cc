"""One device of each worker; TensorFlow's collective ops add up."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from phalanx.cluster.strategies import check_gpus
from phalanx.cluster.tf_config import TFConfig
from phalanx.distributed.collectives import NoCollectives
from phalanx.distributed.strategy import MultiWorkerStrategy
from phalanx.distributed.tensorflow import TensorFlowCollectives
from phalanx.errors import OptionError
from phalanx.worker.strategies.request import StrategyRequest


def make(request: StrategyRequest) -> Any:
    """A `MultiWorkerStrategy`, connected to all workers that TF_CONFIG names.

    Raises:
        OptionError: the communication asked for cannot be, or this process has several GPUs.
    """
    gpus = len(tf.config.get_visible_devices("GPU"))
    if request.communication != "auto":
        check_gpus(request.communication, gpus)
    if gpus > 1:
        raise OptionError(
            f"Asked for the multiworker strategy, which has one device a worker; this process "
            f"sees {gpus} GPUs. Start a worker for each: phalanx run --workers {gpus} SCRIPT."
        )
    config = TFConfig.from_environment(os.environ)
    if config is None or config.synchronous_tasks < 2:
        return MultiWorkerStrategy(NoCollectives("GPU:0" if gpus else "CPU:0"))
    # The public way to start TensorFlow's server and its collectives.
    runtime = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=_options(request.communication)
    )
    return MultiWorkerStrategy(TensorFlowCollectives(runtime), runtime.cluster_resolver)


def _options(communication: str) -> Any:
    if communication == "auto":
        return None
    named = tf.distribute.experimental.CommunicationImplementation[communication.upper()]
    return tf.distribute.experimental.CommunicationOptions(implementation=named)
