"""Where a call runs that an asynchronous cluster does: the model, its strategy, its patches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from phalanx.distributed.topology import ReplicaTopology
from phalanx.keras_compat.model_access import build, strategy_of
from phalanx.keras_compat.ps_ema import begin_averages
from phalanx.keras_compat.ps_updates import check_optimizer, check_shards, updates_on_servers
from phalanx.keras_compat.ps_variables import variables_on_servers
from phalanx.training.context import PATCHES, CallContext

SERVER_PATCHES = (variables_on_servers, updates_on_servers)


def trains_on_servers(model: Any) -> bool:
    """Whether parameter servers keep the model, and workers train it each at its own pace."""
    return is_asynchronous(strategy_of(model))


@contextmanager
def ps_call_context(model: Any, *, trains: bool = False) -> Iterator[CallContext]:
    """Patch Keras's steps and optimizers for variables on servers.

    Raises:
        ConfigurationError: the model's optimizer cannot be right there.
    """
    strategy = strategy_of(model)
    with ExitStack() as stack:
        for patches in (*PATCHES, *SERVER_PATCHES, strategy.scope()):
            stack.enter_context(patches)
        if trains:
            check_optimizer(model.optimizer)
        yield CallContext(model=model, strategy=strategy, topology=ReplicaTopology(), exit=stack)


def build_on_servers(
    stage: CallContext, batch_spec: Any, *, trains: bool = False, predicts: bool = False
) -> None:
    """Create what the model and its optimizer create lazily.

    Raises:
        ConfigurationError: a variable is cut into shards, and the optimizer must see it whole.
    """
    model = stage.model
    if not predicts:
        build(model, batch_spec, stage.strategy)
    elif not model.built:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch_spec)
        keras.backend.compute_output_spec(model, x)
    if trains:
        check_shards(model.optimizer, model.trainable_variables)
        begin_averages(model.optimizer)


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
