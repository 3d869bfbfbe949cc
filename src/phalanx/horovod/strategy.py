"""A `tf.distribute.Strategy` whose replicas are Horovod's processes.

Everything that runs under a strategy runs under this one: it has one replica in this
process, knows its number and how many there are, and lets Horovod add up.

Methods of `tf.distribute.StrategyExtended` that are named with an underscore are those
that TensorFlow has a strategy implement; docs/decisions/0006-horovod-as-a-strategy.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from phalanx.errors import OptionError
from phalanx.horovod.datasets import OwnPart, own_rows
from phalanx.horovod.sums import add_up, gather


class HorovodStrategy(tf.distribute.Strategy):  # type: ignore[misc]  # it has no types
    """One replica in each of Horovod's processes."""

    def __init__(self, horovod: Any, device: str) -> None:
        """Take part with `device` of this process; Horovod must have been started.

        Args:
            horovod: the module `horovod.tensorflow`.
            device: "CPU:0" or "GPU:0".
        """
        super().__init__(_HorovodExtended(self, horovod, device))
        self._horovod = horovod

    def broadcast_state(self, variables: Sequence[Any]) -> None:
        """Give every process the values that process 0 has; all of them must call it."""
        self._horovod.broadcast_variables(list(variables), root_rank=0)


class _HorovodContext(tf.distribute.ReplicaContext):  # type: ignore[misc]
    """What code in a replica's step asks."""

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """Every replica's value, one after the other along `axis`."""
        del options
        horovod = self.strategy.extended.horovod
        return tf.nest.map_structure(lambda one: gather(horovod, one, axis), value)


class _HorovodExtended(tf.compat.v1.distribute.StrategyExtended):  # type: ignore[misc]
    """What TensorFlow asks of a strategy."""

    def __init__(self, strategy: Any, horovod: Any, device: str) -> None:
        super().__init__(strategy)
        self.horovod = horovod
        self._strategy = strategy
        self._device = device

    # Where code runs, and what the replicas are.

    def _call_for_each_replica(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        rank = self.horovod.rank()
        with tf.device(self._device), _HorovodContext(self._strategy, rank):
            return fn(*args, **kwargs)

    @property
    def _num_replicas_in_sync(self) -> int:
        return int(self.horovod.size())

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

    # Values: one replica's value stands for itself.

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        kwargs.pop("colocate_with", None)
        with tf.device(self._device):
            return next_creator(**kwargs)

    def _local_results(self, value: Any) -> tuple[Any, ...]:
        return (value,)

    def value_container(self, value: Any) -> Any:
        """What holds `value` beside its copies on other replicas: itself."""
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
        return gather(self.horovod, value, axis)

    def _reduced(self, reduce_op: Any, value: Any) -> Any:
        return add_up(self.horovod, value, mean=reduce_op == tf.distribute.ReduceOp.MEAN)

    # Data.

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> OwnPart:
        _refuse_options(options)
        return own_rows(dataset, self.horovod.rank(), self.horovod.size())

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> OwnPart:
        _refuse_options(options)
        size = self.horovod.size()
        context = tf.distribute.InputContext(
            num_input_pipelines=size,
            input_pipeline_id=self.horovod.rank(),
            num_replicas_in_sync=size,
        )
        return OwnPart(dataset_fn(context))

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        size, rank = self.horovod.size(), self.horovod.rank()
        return value_fn(tf.distribute.experimental.ValueContext(rank, size))


def _refuse_options(options: Any) -> None:
    per_replica = tf.distribute.InputReplicationMode.PER_REPLICA
    if options is not None and options.experimental_replication_mode == per_replica:
        raise OptionError(
            "Asked to distribute a dataset with InputReplicationMode.PER_REPLICA; the horovod "
            "strategy has one replica a process and takes PER_WORKER, which is the same here."
        )
