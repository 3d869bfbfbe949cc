"""`phalanx.rank()`, `barrier()`, `all_gather()` and similar, for a script's own lines.

Without a launcher, and with one worker, they answer for one. Under parameter servers the chief,
which alone runs the script, is rank 0 of 1.
"""

from __future__ import annotations

import os
import pickle
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.cluster.spec import WorkerSpec
from phalanx.distributed.collectives import Collectives, NoCollectives
from phalanx.distributed.desync.check import before_collective
from phalanx.distributed.strategy import MultiWorkerStrategy
from phalanx.errors import ConfigurationError
from phalanx.monitoring.flight_recorder import flight
from phalanx.worker.strategy import made_strategy


def rank() -> int:
    """The number of this worker among all, from 0."""
    return _collectives().rank


def world_size() -> int:
    """How many workers there are."""
    return _collectives().size


def local_rank() -> int:
    """The number of this worker among those of its host, from 0."""
    spec = WorkerSpec.from_environment(os.environ)
    if spec is None or spec.servers or not spec.addresses:
        return int(os.environ.get("HOROVOD_LOCAL_RANK", 0))
    hosts = [address.rpartition(":")[0] for address in spec.addresses]
    return hosts[: spec.rank].count(hosts[spec.rank])


def is_chief() -> bool:
    """Whether this worker is rank 0, which writes files and prints."""
    return rank() == 0


def barrier() -> None:
    """Return when every worker has called it; all workers must."""
    with _collective("barrier", 0):
        _collectives().barrier()


def broadcast(value: Any, root: int = 0) -> Any:
    """Worker `root`'s `value`, on every worker; all workers must call it.

    Args:
        value: tensors and arrays, in any structure and of equal shapes and dtypes on all workers,
            or, outside of a `tf.function`, anything that pickles.
        root: the rank that gives it.

    Returns:
        The value: tensors for tensors, else what was given.
    """
    leaves = keras.tree.flatten(value)
    if not leaves or not all(map(_is_tensor, leaves)):
        return _objects(value)[root]
    with _collective("broadcast", _bytes(leaves)):
        got = _collectives().broadcast(leaves, root)
    return keras.tree.pack_sequence_as(
        value, [_like(*pair) for pair in zip(leaves, got, strict=True)]
    )


def all_gather(value: Any) -> list[Any]:
    """Every worker's `value`, by rank; all workers must call it.

    Args:
        value: a tensor or array of equal shape and dtype on all workers, or, outside of a
            `tf.function`, anything that pickles.
    """
    if not _is_tensor(value):
        return _objects(value)
    if tf.convert_to_tensor(value).shape.num_elements() == 0:  # TensorFlow's gather crashes
        return [value] * world_size()
    with _collective("all_gather", _bytes([value])):
        stacked = _collectives().all_gather(tf.expand_dims(value, 0))
    parts = tf.unstack(stacked, world_size())
    return [_like(value, part) for part in parts]


def all_reduce(value: Any, op: str = "sum") -> Any:
    """The sum or the mean over workers; all workers must call it.

    Args:
        value: numbers, tensors and arrays, in any structure, of equal shapes on all workers.
        op: "sum" or "mean".

    Returns:
        The totals: tensors for tensors, else NumPy's.

    Raises:
        ConfigurationError: `op` is something else.
    """
    if op not in ("sum", "mean"):
        raise ConfigurationError(f"all_reduce takes op='sum' or op='mean'; found {op!r}.")

    def one(leaf: Any) -> Any:
        tensor = tf.convert_to_tensor(leaf)
        with _collective("all_reduce", _bytes([tensor])):
            return _like(leaf, _collectives().all_reduce(tensor, mean=op == "mean"))

    return keras.tree.map_structure(one, value)


def _collectives() -> Collectives:
    strategy = made_strategy()
    if isinstance(strategy, MultiWorkerStrategy):
        return strategy.collectives
    return NoCollectives("CPU:0")


def _objects(value: Any) -> list[Any]:
    """Every worker's value, pickled: workers run one script and trust each other."""
    collectives = _collectives()
    if collectives.size == 1:
        return [value]
    if not tf.executing_eagerly():
        raise ConfigurationError(
            f"Asked to exchange {type(value).__name__} in a tf.function, where only tensors and "
            "arrays can be. Call it outside."
        )
    raw = np.frombuffer(pickle.dumps(value), np.uint8)
    with _collective("all_gather", raw.nbytes):
        sizes = collectives.all_gather(tf.constant([raw.size])).numpy()
        joined = collectives.all_gather(tf.constant(raw)).numpy()
    ends = np.cumsum(sizes)
    return [
        pickle.loads(joined[end - n : end].tobytes()) for n, end in zip(sizes, ends, strict=True)
    ]


def _collective(name: str, size: int) -> Any:
    before_collective(f"phalanx.{name}")
    return flight.collective(name, size)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (tf.Tensor, tf.Variable, keras.Variable, np.ndarray)) and (
        getattr(value.dtype, "name", value.dtype) not in ("object", "string")
    )


def _bytes(values: list[Any]) -> int:
    return sum(int(np.prod([n or 1 for n in v.shape])) * tf.as_dtype(v.dtype).size for v in values)


def _like(given: Any, tensor: tf.Tensor) -> Any:
    """A result as what was given: a tensor, or NumPy's."""
    if isinstance(given, (tf.Tensor, tf.Variable, keras.Variable)) or not tf.executing_eagerly():
        return tensor
    return tensor.numpy()
