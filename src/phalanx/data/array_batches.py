"""Arrays in memory, as global batches."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.data.batches import (
    no_autograph,
    size_of_all,
    static_share,
    with_free_batch_axis,
)
from phalanx.data.iterator_position import DataPosition
from phalanx.data.sampler import ListedOrder, ShuffleSampler, rows_in
from phalanx.distributed.topology import ReplicaTopology, rows_of
from phalanx.errors import DataError
from phalanx.keras_compat.data_adapters import Arrays, shuffled_rows, spec_of, take_rows


class ArrayBatches:
    """Arrays in memory, in an order that any number of workers shares.

    Where the script sets a seed, the order is the one that Keras draws from it. Without, sample i
    of epoch e is a stateless permutation of (seed, e, i). In both, a worker gathers its own rows
    only, no shuffle buffer is needed, and a position is enough to resume.
    """

    endless = True
    counted = True
    may_be_undivided = False
    length_unknown = False
    has_state = False

    def __init__(self, arrays: Arrays, topology: ReplicaTopology, seed: int | None) -> None:
        """Share out `arrays`; without a `seed`, in the order that Keras draws."""
        self._arrays = arrays
        self._topology = topology
        self.seed: int | None = seed
        self._is_listed = is_listed(arrays, seed)
        rows = shuffled_rows(arrays) if self._is_listed else None
        self._sampler = (
            ListedOrder(rows, arrays.batch_size)
            if rows is not None
            else ShuffleSampler(arrays.num_samples, arrays.batch_size, arrays.shuffle)
        )
        self.num_batches: int | None = self._sampler.num_batches
        self.num_samples: int | None = arrays.num_samples
        self.batch_size: int | None = arrays.batch_size
        self.full_batch_size: int | None = self.batch_size
        self.fingerprint: int | None = fingerprint(arrays.inputs, arrays.num_samples)
        self.order: str | None = order_of(arrays, rows)
        self.may_be_empty = self._sampler.smallest < topology.total
        self.batch_spec = with_free_batch_axis(spec_of(arrays.inputs))

    def open(self, position: int) -> Any:
        """An endless iterator: pass after pass, each in its own order."""
        largest = tf.int64.max
        positions = tf.data.Dataset.range(position, largest)
        shares = positions.map(no_autograph(self._shares), num_parallel_calls=tf.data.AUTOTUNE)
        return iter(shares.prefetch(tf.data.AUTOTUNE))

    def reopen(self, position: DataPosition, state: Mapping[str, Any] | None) -> Any:
        """The same as `open`: a position is all there is.

        Raises:
            DataError: the order at `position` came from the script's seed, and now does not, or
                the other way round.
        """
        del state
        assert_as_before(self._is_listed, is_listed(self._arrays, position.seed))
        return self.open(position.trained)

    def rows_at(self, position: int) -> Any:
        """The numbers of the samples in a global batch."""
        return rows_in(self._sampler, self.seed, position)

    def open_unread(self) -> None:
        """Nothing to do: the order of a pass follows from its number."""

    def on_epoch_begin(self) -> None:
        """Nothing to do: the order of an epoch follows from its number."""

    def on_epoch_end(self) -> None:
        """Nothing to do."""

    def _shares(self, position: tf.Tensor) -> Any:
        order = self._sampler
        epoch, batch = position // order.num_batches, position % order.num_batches
        total = order.total(self.seed, epoch, batch)
        size = size_of_all(self.batch_size, self.num_samples)
        parts = []
        for replica in range(self._topology.first, self._topology.first + self._topology.local):
            start, count = rows_of(replica, self._topology.total, total)
            if self.may_be_empty:
                start = tf.where(count > 0, start, 0)
            within = start + tf.range(tf.maximum(count, 1))
            within.set_shape([static_share(size, replica, self._topology.total)])
            rows = order.rows(self.seed, epoch, batch, within)
            parts.append((tf.cast(count, tf.int32), take_rows(self._arrays.inputs, rows)))
        return tf.cast(total, tf.int32), tuple(parts)


def is_listed(arrays: Arrays, seed: int | None) -> bool:
    """Whether the order is the one that Keras draws: `seed` is None, as the script sets its own."""
    return seed is None and bool(arrays.shuffle)


def order_of(arrays: Arrays, rows: np.ndarray | None) -> str:
    """How `fit` orders the samples of `arrays`; `rows` where Keras draws the order."""
    if rows is None:
        return f"shuffle={arrays.shuffle!r}"
    return f"shuffle={arrays.shuffle!r}, permutation {zlib.crc32(rows.tobytes()):08x}"


def assert_as_before(is_now: bool, was: bool) -> None:
    """Refuse to resume in arrays whose order had another source.

    Args:
        is_now: whether the order is Keras's, by the script's seed.
        was: whether it was where the position was taken.

    Raises:
        DataError: one is and the other is not.
    """
    if is_now != was:
        before, now = ("a seed", "none") if was else ("no seed", "one")
        raise DataError(
            f"Asked to resume in shuffled arrays of a script that set {before}; found that it sets "
            f"{now}. Let keras.utils.set_random_seed be called as before."
        )


_ROWS = 8


def fingerprint(inputs: Any, num_samples: int) -> int:
    """A checksum of some rows, from first to last, of every tensor in `inputs`."""
    rows = sorted({i * (num_samples - 1) // (_ROWS - 1) for i in range(_ROWS)})
    checksum = 0
    for tensor in keras.tree.flatten(inputs):
        if isinstance(tensor, tf.Tensor):
            taken = tf.gather(tensor, rows).numpy()
            raw = b"".join(taken.ravel()) if taken.dtype == object else taken.tobytes()
            checksum = zlib.crc32(raw, checksum)
    return checksum
