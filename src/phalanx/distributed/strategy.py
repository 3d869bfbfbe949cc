"""The strategy of several worker processes: one replica each, with plain variables.

Variables are those that one device would have, so a model builds when and as Keras builds it. What
workers exchange goes through `Collectives`.

Methods of `tf.distribute.StrategyExtended` that are named with an underscore are those
that TensorFlow has a strategy implement; docs/decisions/0007-plain-workers.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from phalanx.cluster.reduce_options import ReduceOptions
from phalanx.distributed.collectives import Collectives
from phalanx.distributed.datasets import ShardedDataset, own_rows
from phalanx.distributed.horovod import HorovodCollectives
from phalanx.errors import ConfigurationError


class MultiWorkerStrategy(tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[misc]  # no types
    """One replica in each worker process.

    It is a `MultiWorkerMirroredStrategy` for scripts that ask by `isinstance`; nothing of that
    class's is used.

    Attributes:
        collectives: how the workers exchange tensors.
        reduce_options: in which pieces and in which dtype gradients travel.
    """

    def __init__(
        self,
        collectives: Collectives,
        cluster_resolver: Any = None,
        *,
        reduce_options: ReduceOptions | None = None,
    ) -> None:
        """Take part through `collectives`.

        Args:
            collectives: connected to all workers.
            cluster_resolver: what `strategy.cluster_resolver` gives.
            reduce_options: in which pieces and in which dtype gradients travel; None for the
                defaults.
        """
        tf.distribute.Strategy.__init__(self, _Extended(self, collectives, cluster_resolver))
        self.collectives = collectives
        self.reduce_options = reduce_options or ReduceOptions()


class WorkerContext(tf.distribute.ReplicaContext):  # type: ignore[misc]
    """What code in a replica's step asks."""

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """Every replica's value, one after the other along `axis`."""
        del options
        gather = self.strategy.collectives.all_gather
        return tf.nest.map_structure(lambda one: gather(one, axis), value)


class _Extended(tf.compat.v1.distribute.StrategyExtended):  # type: ignore[misc]
    """What TensorFlow asks of a strategy."""

    def __init__(self, strategy: Any, collectives: Collectives, cluster_resolver: Any) -> None:
        super().__init__(strategy)
        self._cluster_resolver = cluster_resolver  # `Strategy.cluster_resolver` reads it
        self._strategy = strategy
        self._collectives = collectives
        self._device = collectives.device
        # In a cluster an operation without a device could end up on another worker.
        task = tf.DeviceSpec.from_string(self._device).replace(device_type=None, device_index=None)
        self._default_device = task.to_string() or None

    # Where code runs, and what the replicas are.

    def _call_for_each_replica(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with tf.device(self._device), WorkerContext(self._strategy, self._collectives.rank):
            return fn(*args, **kwargs)

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._collectives.size

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        del replica_id_in_sync_group
        return 0

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The device of this process."""
        return (self._device,)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """Where variables live."""
        return (self._device,)

    def non_slot_devices(self, var_list: Any) -> tuple[str, ...]:
        """Where variables live that are no optimizer's slots."""
        del var_list
        return (self._device,)

    def _in_multi_worker_mode(self) -> bool:
        return False  # TensorFlow's own cluster is not used

    def _use_merge_call(self) -> bool:
        return False

    # Values: there is one replica, so a value is its own aggregate.

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        kwargs.pop("colocate_with", None)
        with tf.device(self._device):
            return next_creator(**kwargs)

    def _local_results(self, value: Any) -> tuple[Any, ...]:
        return (value,)

    def value_container(self, value: Any) -> Any:
        """What holds `value` next to its copies on other replicas: itself."""
        return value

    def read_var(self, replica_local_var: Any) -> Any:
        """This replica's value of a variable."""
        return tf.identity(replica_local_var)

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        return self._update_non_slot(var, fn, (var, *args), kwargs, group)

    def _update_non_slot(
        self, colocate_with: Any, fn: Any, args: Any, kwargs: Any, group: bool
    ) -> Any:
        del colocate_with
        with tf.device(self._device):
            result = fn(*args, **kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)

    # Adding up.

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        del options
        return tf.nest.map_structure(lambda one: self._reduced(reduce_op, one), value)

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        del destinations, options
        return self._reduced(reduce_op, value)

    def _batch_reduce_to(self, reduce_op: Any, pairs: Any, options: Any) -> Any:
        del options
        return [self._reduced(reduce_op, value) for value, _ in pairs]

    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: int, options: Any
    ) -> Any:
        del destinations, options
        return self._collectives.all_gather(value, axis)

    def _reduced(self, reduce_op: Any, value: Any) -> Any:
        mean = reduce_op == tf.distribute.ReduceOp.MEAN
        return self._collectives.all_reduce(value, mean=mean)

    # Data.

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> ShardedDataset:
        _refuse_options(options)
        return own_rows(dataset, self._collectives.rank, self._collectives.size)

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> ShardedDataset:
        _refuse_options(options)
        size = self._collectives.size
        context = tf.distribute.InputContext(
            num_input_pipelines=size,
            input_pipeline_id=self._collectives.rank,
            num_replicas_in_sync=size,
        )
        return ShardedDataset(dataset_fn(context))

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        place = (self._collectives.rank, self._collectives.size)
        return value_fn(tf.distribute.experimental.ValueContext(*place))


def _refuse_options(options: Any) -> None:
    per_replica = tf.distribute.InputReplicationMode.PER_REPLICA
    if options is not None and options.experimental_replication_mode == per_replica:
        raise ConfigurationError(
            "Asked to distribute a dataset with InputReplicationMode.PER_REPLICA; each "
            "worker has one replica and takes PER_WORKER, which is the same here."
        )


def uses_horovod(strategy: tf.distribute.Strategy) -> bool:
    """Whether workers exchange tensors through Horovod under `strategy`."""
    return isinstance(getattr(strategy, "collectives", None), HorovodCollectives)
