"""One device of each worker; TensorFlow's collective ops add up."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import Any

import tensorflow as tf

from phalanx.cluster.strategies import check_gpus
from phalanx.cluster.tf_config_parser import TFConfig
from phalanx.distributed.collectives import NoCollectives
from phalanx.distributed.strategy import MultiWorkerStrategy
from phalanx.distributed.tensorflow import TensorFlowCollectives, no_heartbeat_timeout
from phalanx.worker.strategies.factory import StrategyRequest
from phalanx.worker.strategy_selection import check_one_gpu


def make(request: StrategyRequest) -> Any:
    """A `MultiWorkerStrategy`, connected to all workers that TF_CONFIG names.

    Raises:
        ConfigurationError: the communication asked for cannot be, or this process has several GPUs.
    """
    gpus = len(tf.config.get_visible_devices("GPU"))
    if request.communication_backend != "auto":
        check_gpus(request.communication_backend, gpus)
    config = TFConfig.from_environment(os.environ)
    check_one_gpu(gpus, config, launched=request.worker is not None, script=_script())
    if config is None or config.synchronous_tasks < 2:
        alone = NoCollectives("GPU:0" if gpus else "CPU:0")
        return MultiWorkerStrategy(alone, reduce_options=request.reduction)
    with no_heartbeat_timeout() if _has_launcher(request) else nullcontext():
        # The public way to start TensorFlow's server and its collectives.
        runtime = tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=_options(request.communication_backend)
        )
    return MultiWorkerStrategy(
        TensorFlowCollectives(runtime),
        runtime.cluster_resolver,
        reduce_options=request.reduction,
    )


def _has_launcher(request: StrategyRequest) -> bool:
    """Whether a launcher sees which workers and hosts are lost, and whether training hangs."""
    return request.worker is not None and request.worker.run_dir is not None


def _script() -> str | None:
    """What this process runs, for a command to copy; None in a notebook."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return None if main is None else os.path.relpath(main)


def _options(communication_backend: str) -> Any:
    if communication_backend == "auto":
        return None
    named = tf.distribute.experimental.CommunicationImplementation[communication_backend.upper()]
    return tf.distribute.experimental.CommunicationOptions(implementation=named)
