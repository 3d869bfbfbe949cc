"""The life of a worker or parameter server that a chief leads: do what it sends, run no script."""

from __future__ import annotations

from typing import Any, NoReturn

import tensorflow as tf

from phalanx.cluster.spec import WorkerSpec

LEAST_THREADS = 16
"""Operations that may run side by side: one that waits for another process takes up a thread."""


def serve(spec: WorkerSpec) -> NoReturn:
    """Take part in the chief's cluster until the launcher ends this process."""
    start_server(spec).join()
    raise AssertionError("TensorFlow's server ended on its own")


def start_server(spec: WorkerSpec) -> Any:
    """TensorFlow's server for the place that `spec` describes."""
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=LEAST_THREADS)
    if spec.threads is not None:
        config.intra_op_parallelism_threads = spec.threads
    return tf.distribute.Server(
        tf.train.ClusterSpec(spec.cluster),
        job_name=spec.role,
        task_index=spec.task_index,
        protocol="grpc",
        config=config,
    )
