"""TensorFlow's collective ops: a gRPC ring on CPUs, NCCL on GPUs.

Private names used, guarded by tests/replicas/test_canaries.py:
`CollectiveAllReduceExtended._cross_device_ops`, whose `_launchers` hold one
`CollectiveReplicaLauncher` for each device of this process. A `MultiWorkerMirroredStrategy` is
the public way to start TensorFlow's server and its collectives; nothing trains under it here.
Its `_group_key`, `_group_size`, `_collective_keys` and `_options`, and `_get_new_group_key` of the
keys, make another launcher for the same device: keys are dealt out in the order of calls, which
differs between workers where two threads call.
`CollectiveReplicaLauncher._all_gather`, which gathers tensors of equal shapes in one exchange.
`tensorflow.python.eager.context.context().configure_coordination_service`, which the strategy
calls without a timeout.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context  # noqa: TID251

from phalanx.distributed.collectives import Collectives

_NEVER = 1 << 62
"""Milliseconds. More than the unsigned difference of any two times, which a clock that is set back
makes of a small negative one."""

_RING = tf.distribute.experimental.CommunicationOptions(
    implementation=tf.distribute.experimental.CommunicationImplementation.RING
)


@contextmanager
def no_heartbeat_timeout() -> Iterator[None]:
    """Have strategies that are made in the block set up a coordination service that waits.

    TensorFlow's counts a worker as lost after ten seconds without a heartbeat by the wall clock. So
    it ends healthy training when that clock is set, or when all processes were stopped for a while.
    A launcher detects lost workers, lost hosts and hangs by other means.
    """
    own = context.context()
    configure = own.configure_coordination_service
    own.configure_coordination_service = partial(configure, heartbeat_timeout_in_ms=_NEVER)
    try:
        yield
    finally:
        del own.configure_coordination_service


class TensorFlowCollectives(Collectives):
    """The collectives that a `tf.distribute.MultiWorkerMirroredStrategy` has set up."""

    # `CollectiveReduceV2` adds up floats, int64 and, on CPUs alone, int32 ("Collective all-reduce
    # does not support datatype DT_INT32 on DEVICE_GPU", base_collective_executor.cc).
    carriers = dict.fromkeys(
        (
            tf.bool, tf.int8, tf.int16, tf.int32, tf.uint8, tf.uint16, tf.uint32, tf.uint64,
        ),
        tf.int64,
    )  # fmt: skip

    def __init__(self, runtime: tf.distribute.MultiWorkerMirroredStrategy) -> None:
        """Take over what `runtime`, which has one device a worker, has set up."""
        (device,) = runtime.extended.worker_devices
        resolver = runtime.cluster_resolver
        super().__init__(rank=_rank(resolver), size=runtime.num_replicas_in_sync, device=device)
        self._runtime = runtime  # its server and threads live as long as it does
        (self._launcher,) = runtime.extended._cross_device_ops._launchers
        self._make_gather()

    def independent(self) -> TensorFlowCollectives:
        """See `Collectives.independent`.

        NCCL wants the collectives of a GPU in one order on all workers, and two threads have none
        in common. So these go through a ring.
        """
        made = copy.copy(self)
        own = self._launcher
        keys = own._collective_keys
        key = keys._get_new_group_key([own._device])
        options = own._options.merge(_RING)
        made._launcher = type(own)(key, own._group_size, keys, own._device, options)
        made._make_gather()
        return made

    def _make_gather(self) -> None:
        self._gather: Any = tf.function(
            lambda tensor: self._launcher.all_gather(tensor, 0),
            autograph=False,
            reduce_retracing=True,
        )

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sum over workers of a dense tensor."""
        return self._launcher.all_reduce(tensor)

    def sum_slices(self, slices: tf.IndexedSlices) -> tf.IndexedSlices:
        """All workers' rows by rank."""
        return self._launcher.all_reduce_indexed_slices(slices)

    def concatenate(self, tensor: tf.Tensor) -> tf.Tensor:
        """All workers' rows by rank, along axis 0."""
        if tf.executing_eagerly():  # the launcher gathers in functions alone
            inner = tensor.shape[1:]
            rows = tf.reshape(tensor, [tensor.shape[0], inner.num_elements()])  # one trace for all
            return tf.reshape(self._gather(rows), [-1, *inner])
        return self._launcher.all_gather(tensor, 0)

    def gather_equal(self, tensor: tf.Tensor) -> tf.Tensor:
        """All workers' rows by rank, along axis 0, of tensors whose shapes are equal."""
        self._count_dynamic(tensor)
        return self._launcher._all_gather(tensor, None)


def _rank(resolver: Any) -> int:
    """The number of this process: a chief is worker 0, and the workers follow it."""
    spec = resolver.cluster_spec()
    has_chief = "chief" in spec.jobs
    return 0 if resolver.task_type == "chief" else int(resolver.task_id) + has_chief
