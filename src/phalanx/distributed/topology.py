"""Which replicas of the worker group this process runs, and which rows of a batch are theirs."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(frozen=True, kw_only=True)
class ReplicaTopology:
    """This process's replicas: `local` of them, numbered from `first` among `total`."""

    first: int = 0
    local: int = 1
    total: int = 1

    @property
    def is_chief(self) -> bool:
        """Whether this process runs replica 0, and so writes files and prints."""
        return self.first == 0

    @property
    def rank(self) -> int:
        """The number of this process among those that run replicas."""
        return self.first // self.local

    @property
    def workers(self) -> int:
        """How many processes run replicas."""
        return self.total // self.local

    @property
    def has_peers(self) -> bool:
        """Whether other processes run replicas too."""
        return self.local < self.total


_places: weakref.WeakKeyDictionary[Any, ReplicaTopology] = weakref.WeakKeyDictionary()


def topology_of(strategy: tf.distribute.Strategy) -> ReplicaTopology:
    """The place of this process in `strategy`; asks TensorFlow, no peer is involved."""
    if strategy.num_replicas_in_sync == 1:
        return ReplicaTopology()
    if strategy not in _places:
        _places[strategy] = _ask(strategy)
    return _places[strategy]


def _ask(strategy: tf.distribute.Strategy) -> ReplicaTopology:

    def replica_id() -> Any:
        return tf.identity(tf.distribute.get_replica_context().replica_id_in_sync_group)

    # In a function: run eagerly, TensorFlow warns of its being slow.
    own_ids = tf.function(lambda: strategy.run(replica_id), autograph=False)
    ids = [int(i) for i in strategy.experimental_local_results(own_ids())]
    return ReplicaTopology(first=min(ids), local=len(ids), total=strategy.num_replicas_in_sync)


def calls_python(strategy: tf.distribute.Strategy) -> bool:
    """Whether a step under `strategy` can call back into this process: a TPU's cannot."""
    return not isinstance(strategy, tf.distribute.TPUStrategy)


def replica_id_in_group() -> int:
    """The number, in the whole worker group, of the replica whose step is being traced or run."""
    context = tf.distribute.get_replica_context()
    return int(tf.get_static_value(context.replica_id_in_sync_group))


def rows_of(replica: int, replicas: int, total: Any) -> tuple[Any, Any]:
    """Start and count of the rows that `replica` takes of a batch of `total` rows.

    Replicas take neighbouring rows in order; counts differ by one at most, and the first
    replicas take the odd rows. Works on integers and on integer tensors.
    """
    base, odd = total // replicas, total % replicas
    if isinstance(total, tf.Tensor):
        extra = tf.cast(replica < odd, total.dtype)
        return replica * base + tf.minimum(tf.cast(replica, total.dtype), odd), base + extra
    return replica * base + min(replica, odd), base + int(replica < odd)
