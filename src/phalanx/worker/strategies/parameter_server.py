"""A chief that leads, workers that compute, servers that keep the variables."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from phalanx.cluster.task_types import DEFAULT_SHARDING, parse_sharding
from phalanx.errors import ConfigurationError
from phalanx.worker.logs import absl_held_back
from phalanx.worker.ps_server import LEAST_THREADS
from phalanx.worker.strategies.factory import StrategyRequest


def make(request: StrategyRequest) -> Any:
    """A `ParameterServerStrategy`, connected to all workers and servers.

    Raises:
        ConfigurationError: this process is not a cluster's chief.
    """
    spec = request.worker
    cluster = spec.cluster if spec is not None else _cluster_of_chief(os.environ)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), rpc_layer="grpc", task_type="chief", task_id=0
    )
    if spec is not None:  # elsewhere the script decides, and may have started TensorFlow
        tf.config.threading.set_inter_op_parallelism_threads(LEAST_THREADS)
    sharding = spec.sharding if spec is not None else DEFAULT_SHARDING
    with absl_held_back():  # of twenty lines about the session's configuration
        return tf.distribute.ParameterServerStrategy(
            resolver, variable_partitioner=partitioner(sharding, servers=len(cluster["ps"]))
        )


def partitioner(sharding: str, *, servers: int) -> Any:
    """A partitioner, as TensorFlow calls it, for `--variable-partitioner`; None for "none".

    Tables and matrices are cut, and not counters, seeds or what has one axis.
    """
    made = tf.distribute.experimental.partitioners
    requested = parse_sharding(sharding)
    if requested.shards is not None:
        return _of_tables(made.FixedShardsPartitioner(requested.shards))
    if requested.min_bytes is not None:
        return _of_tables(made.MinSizePartitioner(requested.min_bytes, max_shards=servers))
    return None


def _of_tables(partitions: Any) -> Any:
    def partition(shape: Any, dtype: Any, axis: int = 0) -> Any:
        if shape.rank < 2 or not dtype.is_floating:
            return [1] * shape.rank
        return partitions(shape, dtype, axis)

    return partition


def _cluster_of_chief(environment: Any) -> dict[str, list[str]]:
    from phalanx.cluster.tf_config_parser import TFConfig

    config = TFConfig.from_environment(environment)
    if config is None or config.task_type != "chief" or not config.cluster.get("ps"):
        found = "no TF_CONFIG" if config is None else f"{config.task_type} {config.task_index}"
        raise ConfigurationError(
            "The parameter-server strategy is made in the chief of a cluster with workers and "
            f"servers; found {found}. Use phalanx run --strategy parameter-server --ps 1, or set "
            "TF_CONFIG."
        )
    return {job: list(tasks) for job, tasks in config.cluster.items()}
