"""What a replica is about to pass to a collective, reported to `phalanx.distributed.desync`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from phalanx.distributed.desync.check import NO_GRADIENT, Check, Tensor, current_check


@contextmanager
def compared(
    what: str,
    values: Sequence[Any],
    names: Sequence[str] | None = None,
    *,
    in_step: bool = True,
    free_axis: int | None = None,
) -> Iterator[None]:
    """Compare with the other workers before a block that adds up or gathers `values`.

    Does nothing unless the run was asked to, in graphs (which are traced once), and for
    collectives within the block.

    Args:
        what: what they are together: "gradients".
        values: tensors, `tf.IndexedSlices`, None where there is no gradient.
        names: one for each value.
        in_step: whether a step is under way.
        free_axis: the dimension in which workers may differ.

    Raises:
        WorkerMismatchError: a worker gives other tensors.
        WorkerLostError: a worker has ended.
    """
    check = current_check()
    if check is None or check.is_under_way or not tf.executing_eagerly():
        yield
        return
    if _speaks_for_its_worker(check):
        named = names or [f"tensor {number}" for number in range(1, len(values) + 1)]
        tensors = [_tensor(n, v, free_axis) for n, v in zip(named, values, strict=True)]
        check.compare(what, tensors, in_step=in_step)
    with check.covered():
        yield


def _speaks_for_its_worker(check: Check) -> bool:
    """Whether this is the first of its worker's replicas: one speaks for all."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    context = tf.distribute.get_replica_context()
    replica = int(tf.get_static_value(context.replica_id_in_sync_group))
    return bool(replica % max(replicas // check.workers, 1) == 0)


def _tensor(name: str, value: Any, free_axis: int | None) -> Tensor:
    if value is None:
        return Tensor(name=name, shape=(), dtype=NO_GRADIENT)
    if isinstance(value, tf.IndexedSlices):
        # How many rows it has depends on the data.
        return Tensor(name=name, shape=(-1, *_shape(value.values)[1:]), dtype=value.dtype.name)
    tensor = tf.convert_to_tensor(value)
    shape = _shape(tensor)
    if free_axis is not None and shape:
        shape = tuple(-1 if i == free_axis % len(shape) else n for i, n in enumerate(shape))
    return Tensor(name=name, shape=shape, dtype=tensor.dtype.name)


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(-1 if size is None else int(size) for size in tensor.shape)
