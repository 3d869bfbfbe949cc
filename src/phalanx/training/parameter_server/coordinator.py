"""The chief's hand on its workers: TensorFlow's `ClusterCoordinator`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def is_asynchronous(strategy: Any) -> bool:
    """Whether workers under `strategy` train each at its own pace."""
    return isinstance(strategy, tf.distribute.ParameterServerStrategy)


def coordinator_of(strategy: Any) -> Any:
    """The one coordinator of a strategy; TensorFlow keeps it."""
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


def this_worker() -> Any:
    """The index of the worker that runs a step, scalar int64; for code that is traced for one."""
    index = tf.distribute.coordinator.experimental_get_current_worker_index()
    return tf.cast(index, tf.int64)
