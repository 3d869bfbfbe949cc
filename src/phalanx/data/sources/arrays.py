"""Arrays in memory: one, or a tuple or dict of several with equal first axes."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.data.sources.protocol import IndexedSource
from phalanx.errors import DataError


class ArraySource(IndexedSource):
    """Samples along the first axis of every array in a structure."""

    gathers = True
    can_fail = False

    def __init__(
        self,
        arrays: Any,
        *,
        labels: np.ndarray | None = None,
        where: Callable[[int], str] | None = None,
    ) -> None:
        """Hold the arrays as tensors on the host.

        Args:
            arrays: of NumPy's or TensorFlow's, one, or a tuple or dict of them.
            labels: the class of each sample, where known.
            where: a sample's place, for messages.

        Raises:
            DataError: first axes differ, or an array has none.
        """
        flat = [_as_array(one) for one in tf.nest.flatten(arrays)]
        lengths = [one.shape[0] if one.ndim else None for one in flat]
        if len(set(lengths)) != 1 or lengths[0] is None:
            raise DataError(
                f"Asked for a pipeline from arrays; found first axes of {lengths}. Give arrays "
                "with one row a sample each, as many in all."
            )
        self.num_samples = int(lengths[0])
        with tf.init_scope(), tf.device("CPU:0"):
            tensors = [tf.convert_to_tensor(one) for one in flat]
        self._arrays = tf.nest.pack_sequence_as(arrays, tensors)
        self.element_spec = tf.nest.map_structure(
            lambda one: tf.TensorSpec(one.shape[1:], one.dtype), self._arrays
        )
        self.labels = _labels(arrays) if labels is None else labels
        self.fingerprint = checksum(flat)
        self._where = where

    def read(self, row: tf.Tensor) -> Any:
        """One sample."""
        return tf.nest.map_structure(lambda one: tf.gather(one, row), self._arrays)

    def take(self, rows: tf.Tensor) -> Any:
        """Samples in a batch."""
        return tf.nest.map_structure(lambda one: tf.gather(one, rows), self._arrays)

    def cache_key_parts(self) -> Any:
        """All arrays, to the last byte."""
        return self._arrays

    def where(self, row: int) -> str:
        """The sample's place."""
        return f"sample {row}" if self._where is None else self._where(row)


def from_arrays(given: Any) -> ArraySource | None:
    """Of a NumPy array or a tensor, or a tuple or dict of such."""
    leaves = tf.nest.flatten(given) if isinstance(given, (tuple, dict)) else [given]
    is_arrays = leaves and all(isinstance(one, (np.ndarray, tf.Tensor)) for one in leaves)
    return ArraySource(given) if is_arrays else None


def checksum(arrays: list[np.ndarray]) -> int:
    """A checksum of some rows, from first to last, of arrays with equal first axes."""
    found = 0
    for array in arrays:
        rows = sorted({i * (len(array) - 1) // 7 for i in range(8)}) if len(array) else []
        taken = array[rows]
        raw = repr(taken.tolist()).encode() if taken.dtype == object else taken.tobytes()
        found = zlib.crc32(raw, found)
    return found


def _as_array(value: Any) -> np.ndarray:
    return value.numpy() if isinstance(value, tf.Tensor) else np.asarray(value)


def _labels(arrays: Any) -> np.ndarray | None:
    """The second of (x, y), if it is one whole number a sample."""
    if not isinstance(arrays, tuple) or len(arrays) < 2:
        return None
    labels = arrays[1]
    if isinstance(labels, (tuple, dict)):
        return None
    found = _as_array(labels)
    is_classes = found.ndim == 1 and np.issubdtype(found.dtype, np.integer)
    return found.astype(np.int64) if is_classes else None
