"""The global order of samples: batch b of epoch e is the same set for any number of workers.

Each order is a function of (seed, epoch, place), so a worker computes the rows it needs and no
others, and a position is enough to resume from. All tensors are int64.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import tensorflow as tf

Shuffle = bool | str
"""Whether and how: True, False or "batch"."""


class Sampler(Protocol):
    """The sample at each position.

    Attributes:
        num_samples: in one pass, without those that `drop_remainder` leaves out.
        num_batches: in one pass.
        batch_size: samples in every batch but the last of a pass; None where they differ.
        smallest: samples in the smallest batch.
    """

    num_samples: int
    num_batches: int
    batch_size: int | None
    smallest: int

    def total(self, seed: Any, epoch: Any, batch: Any) -> tf.Tensor:
        """How many samples a batch holds."""

    def rows(self, seed: Any, epoch: Any, batch: Any, within: tf.Tensor) -> tf.Tensor:
        """The samples at the places `within` (1-D, from 0) of a batch."""


class EvenBatches:
    """A pass in batches of one size, but for the last."""

    def __init__(self, samples: int, size: int, *, drop_remainder: bool) -> None:
        """Cut `samples` into batches of `size`."""
        self._samples = samples
        self._size = size
        self.num_batches = samples // size if drop_remainder else -(-samples // size)
        self.num_samples = min(samples, self.num_batches * size)
        self.batch_size: int | None = size
        self.smallest = self.num_samples - (self.num_batches - 1) * size

    def total(self, seed: Any, epoch: Any, batch: Any) -> tf.Tensor:
        """How many samples a batch holds."""
        del seed, epoch
        return tf.minimum(tf.constant(self._size, tf.int64), self._samples - batch * self._size)


class ShuffleSampler(EvenBatches):
    """Samples in their order, or each pass in a permutation of (seed, epoch)."""

    def __init__(
        self, samples: int, size: int, shuffle: Shuffle, *, drop_remainder: bool = False
    ) -> None:
        """Order `samples` in batches of `size`; "batch" shuffles within each batch alone."""
        super().__init__(samples, size, drop_remainder=drop_remainder)
        self._shuffle = shuffle

    def rows(self, seed: Any, epoch: Any, batch: Any, within: tf.Tensor) -> tf.Tensor:
        """The samples at the places `within` of a batch."""
        first = batch * self._size
        if self._shuffle == "batch":
            key = _key(seed, epoch * self.num_batches + batch)
            last = self.total(seed, epoch, batch) - 1
            return first + tf.random.experimental.index_shuffle(within, key, last)
        if self._shuffle:
            last = tf.constant(self._samples - 1, tf.int64)
            key = _key(seed, epoch)
            return tf.random.experimental.index_shuffle(first + within, key, last)
        return first + within


class ListedOrder(EvenBatches):
    """Every pass in the same listed order."""

    def __init__(self, rows: np.ndarray, size: int) -> None:
        """Cut `rows` (numbers of samples, int64) into batches of `size`."""
        super().__init__(len(rows), size, drop_remainder=False)
        with tf.device("CPU:0"):
            self._rows = tf.constant(rows, tf.int64)

    def rows(self, seed: Any, epoch: Any, batch: Any, within: tf.Tensor) -> tf.Tensor:
        """The samples at the places `within` of a batch."""
        del seed, epoch
        return tf.gather(self._rows, batch * self._size + within)


def rows_in(order: Sampler, seed: Any, position: int) -> np.ndarray:
    """The samples of the global batch at `position`, batches trained before."""
    epoch, batch = (tf.constant(n, tf.int64) for n in divmod(position, order.num_batches))
    total = order.total(seed, epoch, batch)
    found: np.ndarray = order.rows(seed, epoch, batch, tf.range(total)).numpy()
    return found


def _key(seed: Any, number: Any) -> tf.Tensor:
    return tf.stack([tf.cast(seed, tf.int64), tf.cast(number, tf.int64)])
