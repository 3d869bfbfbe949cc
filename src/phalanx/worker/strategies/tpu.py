"""The cores of a TPU, driven by this process."""

from __future__ import annotations

import logging
import os
from typing import Any

import tensorflow as tf

from phalanx.cluster.tpu import find_tpu, metadata_server
from phalanx.errors import ConfigurationError
from phalanx.worker.strategies.factory import StrategyRequest

_log = logging.getLogger("phalanx")


def make(request: StrategyRequest) -> Any:
    """A `TPUStrategy`, connected and initialised.

    Raises:
        ConfigurationError: there is no TPU, or TensorFlow does not reach it.
        ClusterError: what the environment or the metadata server says makes no sense.
    """
    del request
    place = find_tpu(os.environ, metadata_server(os.environ))
    if place is None:
        raise ConfigurationError(
            "Asked for the tpu strategy; found no TPU: TPU_NAME and TPU_WORKER_HOSTNAMES are not "
            "set, and no metadata server names one. Set TPU_NAME to its name or grpc:// "
            "address, or run on a TPU machine."
        )
    _log.info("TPU %s, since %s", place.accelerator or "of unknown type", place.reason)
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=place.address)
        if place.address != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except Exception as error:  # each kind of trouble has its own type here
        raise ConfigurationError(
            f"Asked for the tpu strategy; found {place.reason}, but TensorFlow does not reach it "
            f"({type(error).__name__}: {str(error)[:300]}). See that this TensorFlow has TPU "
            "support (pip install tensorflow-tpu) and that no other process uses the TPU."
        ) from error
