"""Orders over samples in groups: several sources with weights, classes, lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.data.sampler import EvenBatches

_APART = 0x9E3779B9
"""Sets the seeds of groups apart."""


class WeightedMixSampler(EvenBatches):
    """Each pass takes a fixed share from every group, mixed at random.

    A group is walked in whole permuted passes of its own, which resume from epoch to epoch: none
    of its samples comes a second time before all have come once.
    """

    def __init__(
        self,
        rows: Sequence[np.ndarray],
        weights: Sequence[float],
        size: int,
        *,
        drop_remainder: bool = False,
    ) -> None:
        """Order groups of rows in batches of `size`, so many in all as there are rows."""
        sizes = np.array([len(group) for group in rows], np.int64)
        super().__init__(int(sizes.sum()), size, drop_remainder=drop_remainder)
        self._quotas = quotas(weights, self._samples)
        self._ends = np.cumsum(self._quotas)
        self._sizes = sizes
        self._firsts = np.cumsum(sizes) - sizes
        self._rows = np.concatenate(rows).astype(np.int64)

    def rows(self, seed: Any, epoch: Any, batch: Any, within: tf.Tensor) -> tf.Tensor:
        """The samples at the places `within` of a batch."""
        seed, epoch = tf.cast(seed, tf.int64), tf.cast(epoch, tf.int64)
        shuffled = tf.random.experimental.index_shuffle
        last = tf.constant(self._samples - 1, tf.int64)
        drawn = shuffled(batch * self._size + within, tf.stack([seed, epoch]), last)
        group = tf.searchsorted(tf.constant(self._ends), drawn, side="right", out_type=tf.int64)
        quota = tf.gather(self._quotas, group)
        # The how manieth this is of its group, counted from the first epoch.
        nth = epoch * quota + drawn - (tf.gather(self._ends, group) - quota)
        size = tf.gather(self._sizes, group)
        # TensorFlow 2.21's index_shuffle refuses a seed for each index; the op itself takes them.
        keys = tf.stack([tf.fill(tf.shape(nth), seed), nth // size, group], axis=1)
        own = tf.raw_ops.RandomIndexShuffle(index=nth % size, seed=keys, max_index=size - 1)
        return tf.gather(self._rows, tf.gather(self._firsts, group) + own)


class BucketedOrder:
    """Each batch holds samples of one bucket, such as of about one length."""

    def __init__(
        self,
        buckets: Sequence[np.ndarray],
        size: int,
        *,
        shuffle: bool,
        drop_remainder: bool = False,
    ) -> None:
        """Order buckets of rows in batches of `size`; each bucket's last may be smaller."""
        sizes = np.array([len(bucket) for bucket in buckets], np.int64)
        batches = sizes // size if drop_remainder else -(-sizes // size)
        kept = np.minimum(sizes, batches * size)
        self._size = size
        self._shuffle = shuffle
        self._sizes = sizes
        self._firsts = np.cumsum(sizes) - sizes
        self._ends = np.cumsum(batches)
        self._batches = batches
        self._rows = np.concatenate(buckets).astype(np.int64)
        self.num_batches = int(batches.sum())
        self.num_samples = int(kept.sum())
        self.batch_size: int | None = None
        lasts = (kept - (batches - 1) * size)[batches > 0]
        self.smallest = int(lasts.min()) if len(lasts) else 0

    def bucket(self, seed: Any, epoch: Any, batch: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """The bucket that a batch is from, and the batch's number in it."""
        if self._shuffle:
            key = tf.stack([tf.cast(seed, tf.int64), tf.cast(epoch, tf.int64)])
            last = tf.constant(self.num_batches - 1, tf.int64)
            batch = tf.random.experimental.index_shuffle(batch, key, last)
        ends = tf.constant(self._ends)
        bucket = tf.searchsorted(ends, batch[None], side="right", out_type=tf.int64)[0]
        return bucket, batch - (tf.gather(ends, bucket) - tf.gather(self._batches, bucket))

    def total(self, seed: Any, epoch: Any, batch: Any) -> tf.Tensor:
        """How many samples a batch holds."""
        bucket, number = self.bucket(seed, epoch, batch)
        left = tf.gather(self._sizes, bucket) - number * self._size
        return tf.minimum(tf.constant(self._size, tf.int64), left)

    def rows(self, seed: Any, epoch: Any, batch: Any, within: tf.Tensor) -> tf.Tensor:
        """The samples at the places `within` of a batch."""
        bucket, number = self.bucket(seed, epoch, batch)
        place = number * self._size + within
        if self._shuffle:
            own = tf.cast(seed, tf.int64) + (bucket + 1) * _APART
            key = tf.stack([own, tf.cast(epoch, tf.int64)])
            last = tf.gather(self._sizes, bucket) - 1
            place = tf.random.experimental.index_shuffle(place, key, last)
        return tf.gather(self._rows, tf.gather(self._firsts, bucket) + place)


def quotas(weights: Sequence[float], samples: int) -> np.ndarray:
    """`samples` shared out by weights in whole numbers: off by less than one each."""
    exact = np.asarray(weights, np.float64) / np.sum(weights) * samples
    shares: np.ndarray = np.floor(exact).astype(np.int64)
    largest = np.argsort(-(exact - shares), kind="stable")
    shares[largest[: samples - int(shares.sum())]] += 1
    return shares
