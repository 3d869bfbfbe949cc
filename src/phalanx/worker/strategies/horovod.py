"""One device of each worker; Horovod adds up."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from phalanx.distributed.horovod import HorovodCollectives
from phalanx.distributed.strategy import MultiWorkerStrategy
from phalanx.horovod.gloo_rendezvous import connect
from phalanx.worker.devices import local_devices
from phalanx.worker.strategies.factory import StrategyRequest


def make(request: StrategyRequest) -> Any:
    """A `MultiWorkerStrategy` over Horovod, connected to all other processes.

    Raises:
        ConfigurationError: Horovod is missing or does not load.
        ClusterError: the processes do not find each other.
    """
    horovod = connect(request.worker)
    gpus = tf.config.get_visible_devices("GPU")
    if request.worker is None and len(gpus) > 1:
        # horovodrun shows every process all GPUs.
        tf.config.set_visible_devices(gpus[horovod.local_rank()], "GPU")
    collectives = HorovodCollectives(horovod, local_devices()[0])
    return MultiWorkerStrategy(collectives, reduce_options=request.reduction)
