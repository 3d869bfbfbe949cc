"""The collectives through which worker processes exchange tensors.

All traffic between workers passes this interface. An implementation is a file next to this one:
`tensorflow.py` (TensorFlow's collective ops: a gRPC ring on CPUs, NCCL on GPUs), `horovod.py`.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

Value = Any
"""A dense `tf.Tensor`, or `tf.IndexedSlices`."""


class Collectives(abc.ABC):
    """One process's end of the exchange; each method is a collective that all workers must call.

    Methods work eagerly and inside of a `tf.function`, on tensors of any numeric dtype and bool.

    Attributes:
        rank: the number of this process, from 0.
        size: how many processes there are.
        device: this process's device, as `tf.device` takes it.
        dynamic_shapes: how many collectives were traced whose shape a graph does not know.
    """

    carriers: dict[tf.DType, tf.DType]
    """The wider dtype that carries each dtype which the implementation cannot add up."""

    def __init__(self, *, rank: int, size: int, device: str) -> None:
        self.rank = rank
        self.size = size
        self.device = device
        self.dynamic_shapes = 0

    @abc.abstractmethod
    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """The sum over workers of a dense tensor; shapes are equal on all workers.

        Args:
            tensor: of float16, bfloat16, float32, float64, int64 or, unless `carriers` has it,
                another dtype.
        """

    @abc.abstractmethod
    def sum_slices(self, slices: tf.IndexedSlices) -> tf.IndexedSlices:
        """All workers' rows by rank; the numbers of rows may differ."""

    @abc.abstractmethod
    def concatenate(self, tensor: tf.Tensor) -> tf.Tensor:
        """All workers' rows by rank, along axis 0; the numbers of rows may differ."""

    def gather_equal(self, tensor: tf.Tensor) -> tf.Tensor:
        """All workers' rows by rank, along axis 0, of tensors whose shapes are equal.

        It is one exchange: no worker asks first how many rows the others have.
        """
        return self.all_gather(tensor)

    def all_reduce(self, value: Value, *, mean: bool = False) -> Value:
        """The sum, or the mean, of all workers' `value`, in its dtype."""
        if isinstance(value, tf.IndexedSlices):
            self._count_dynamic(value.values)
            total = value if self.size == 1 else self.sum_slices(value)
            if not mean:
                return total
            return tf.IndexedSlices(total.values / self.size, total.indices, total.dense_shape)
        tensor = tf.convert_to_tensor(value)
        self._count_dynamic(tensor)
        if self.size == 1 or tensor.shape.num_elements() == 0:  # TensorFlow crashes on nothing
            return tf.identity(tensor)
        carrier = self.carriers.get(tensor.dtype, tensor.dtype)
        total = self.sum(tf.cast(tensor, carrier))
        if mean:
            total = total / tf.cast(self.size, carrier)
        return tf.cast(total, tensor.dtype)

    def all_gather(self, value: Value, axis: int = 0) -> tf.Tensor:
        """All workers' `value`, one after the other along `axis`, by rank.

        Shapes are equal on all workers but for `axis`.
        """
        tensor = tf.convert_to_tensor(value)
        self._count_dynamic(tensor)
        if self.size == 1:
            return tf.identity(tensor)
        if axis:
            order = [axis, *(i for i in range(tensor.shape.rank) if i != axis)]
            back = [order.index(i) for i in range(len(order))]
            return tf.transpose(self.all_gather(tf.transpose(tensor, order)), back)
        carrier = self.carriers.get(tensor.dtype, tensor.dtype)
        return tf.cast(self.concatenate(tf.cast(tensor, carrier)), tensor.dtype)

    def _count_dynamic(self, tensor: tf.Tensor) -> None:
        """Count a collective that is traced, if its shape may differ from call to call.

        TensorFlow takes one shape for all calls of an op within one execution of a graph, such as
        in a loop (`CollectiveParamResolverLocal`, "Shape mismatch in the collective instance").
        """
        if not (tf.executing_eagerly() or tensor.shape.is_fully_defined()):
            self.dynamic_shapes += 1

    def broadcast(self, values: Sequence[Value], root: int = 0) -> list[tf.Tensor]:
        """Worker `root`'s `values`, bit by bit; shapes and dtypes are equal on all workers.

        They travel together, as one tensor.
        """
        tensors = [tf.convert_to_tensor(value) for value in values]
        if self.size == 1 or not tensors:
            return [tf.identity(tensor) for tensor in tensors]
        # Zeros and one summand, as whole numbers: what comes out is the root's to the last bit.
        words = [_as_words(tensor) for tensor in tensors]
        packed = tf.concat(words, axis=0)
        total = self.sum(packed if self.rank == root else tf.zeros_like(packed))
        parts = tf.split(total, [tf.size(word) for word in words], num=len(words))
        return [_from_words(*both) for both in zip(parts, tensors, strict=True)]

    def independent(self) -> Collectives:
        """The same workers, with an order of calls of its own: for use in another thread.

        All workers must call it, in the same order.

        Raises:
            NotImplementedError: the implementation has one order for all threads.
        """
        raise NotImplementedError

    def barrier(self) -> None:
        """Return when every worker has called it."""
        if self.size > 1:
            self.sum(tf.constant(1, tf.int64))


class NoCollectives(Collectives):
    """The exchange of a worker that is alone."""

    carriers = {}  # noqa: RUF012  # what is alone carries nothing

    def __init__(self, device: str) -> None:
        super().__init__(rank=0, size=1, device=device)

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor."""
        return tensor

    def sum_slices(self, slices: tf.IndexedSlices) -> tf.IndexedSlices:
        """The slices."""
        return slices

    def concatenate(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor."""
        return tensor


def _as_words(tensor: tf.Tensor) -> tf.Tensor:
    """The bits of a tensor as a vector of int64, which all devices add up."""
    if tensor.dtype == tf.bool:
        tensor = tf.cast(tensor, tf.uint8)
    flat = tf.reshape(tensor, [-1])
    in_word = max(1, tf.int64.size // tensor.dtype.size)
    if in_word > 1:
        flat = tf.reshape(tf.pad(flat, [[0, -tf.size(flat) % in_word]]), [-1, in_word])
    return tf.reshape(tf.bitcast(flat, tf.int64), [-1])


def _from_words(words: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """The tensor of which `_as_words` made `words`; `like` has its shape and dtype."""
    dtype = tf.uint8 if like.dtype == tf.bool else like.dtype
    if dtype.size > tf.int64.size:
        words = tf.reshape(words, [-1, dtype.size // tf.int64.size])
    flat = tf.reshape(tf.bitcast(words, dtype), [-1])[: tf.size(like)]
    return tf.cast(tf.reshape(flat, tf.shape(like)), like.dtype)
