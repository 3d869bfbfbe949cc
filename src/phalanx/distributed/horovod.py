"""Horovod's collectives."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from phalanx.distributed.collectives import Collectives


class HorovodCollectives(Collectives):
    """The collectives of Horovod 0.28, which must have been started."""

    carriers = {  # noqa: RUF012  # what Horovod 0.28 cannot add up
        tf.bfloat16: tf.float32,
        tf.bool: tf.int32,
        tf.int16: tf.int32,
        tf.uint16: tf.int32,
        tf.uint32: tf.int64,
        tf.uint64: tf.int64,
    }

    def __init__(self, horovod: Any, device: str) -> None:
        """Take part with `device` of this process.

        Args:
            horovod: the module `horovod.tensorflow`.
            device: "CPU:0" or "GPU:0".
        """
        super().__init__(rank=int(horovod.rank()), size=int(horovod.size()), device=device)
        self._horovod = horovod

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sum over workers of a dense tensor."""
        return self._horovod.allreduce(tensor, op=self._horovod.Sum)

    def sum_slices(self, slices: tf.IndexedSlices) -> tf.IndexedSlices:
        """All workers' rows by rank."""
        return self._horovod.allreduce(slices, op=self._horovod.Sum)

    def concatenate(self, tensor: tf.Tensor) -> tf.Tensor:
        """All workers' rows by rank, along axis 0."""
        return self._horovod.allgather(tensor)
