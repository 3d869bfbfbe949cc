"""All devices of this process, GPUs if there are any."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from phalanx.cluster.strategies import check_gpus
from phalanx.errors import ConfigurationError
from phalanx.worker.devices import local_devices
from phalanx.worker.strategies.factory import StrategyRequest

_CROSS_DEVICE_OPS = {
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
    "one-device": tf.distribute.ReductionToOneDevice,
}


def make(request: StrategyRequest) -> Any:
    """A `MirroredStrategy` on the devices of this process.

    Raises:
        ConfigurationError: the communication asked for cannot be.
    """
    check_gpus(request.communication_backend, len(tf.config.list_logical_devices("GPU")))
    devices = local_devices()
    if request.communication_backend == "hierarchical" and len(devices) % 2:
        # TensorFlow halves the devices into two groups, and an odd one's values would be lost.
        raise ConfigurationError(
            f"Asked for communication 'hierarchical' on {len(devices)} devices; it adds up an even "
            "number. Use an even --devices-per-worker, or one-device."
        )
    ops = _CROSS_DEVICE_OPS.get(_communication(request))
    return tf.distribute.MirroredStrategy(devices, ops() if ops else None)


def _communication(request: StrategyRequest) -> str:
    devices = request.worker.devices if request.worker else None
    if request.communication_backend == "auto" and devices and devices.kind == "logical-gpu":
        return "one-device"  # NCCL wants each GPU once
    return request.communication_backend
