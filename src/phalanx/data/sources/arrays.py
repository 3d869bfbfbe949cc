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
    """Of a NumPy array or a tensor, or a tuple or dict of such; lists next to them are arrays too.

    Raises:
        DataError: a list is none, or first axes differ.
    """
    if isinstance(given, list):
        return None  # of samples
    arrays = lists_as_arrays(given)
    return ArraySource(arrays) if _is_arrays(arrays) else None


def lists_as_arrays(given: Any) -> Any:
    """`given`, with arrays in place of the lists that are next to arrays in a tuple or dict.

    A tuple of which every part has lists is left as it is: its parts may be samples.

    Raises:
        DataError: a list has rows of several shapes, or holds neither numbers nor text.
    """
    leaves = _leaves(given)
    if not any(map(_is_list, leaves)) or not all(_is_list(v) or _is_arrays(v) for v in leaves):
        return given
    parts = given if isinstance(given, tuple) else leaves
    return _converted(given) if any(map(_is_arrays, parts)) else given


def _leaves(given: Any) -> list[Any]:
    """What tuples and dicts hold; a list is one leaf."""
    if not isinstance(given, (tuple, dict)):
        return [given]
    parts = given.values() if isinstance(given, dict) else given
    return [leaf for part in parts for leaf in _leaves(part)]


def _is_arrays(given: Any) -> bool:
    leaves = tf.nest.flatten(given) if isinstance(given, (tuple, dict, list)) else [given]
    return bool(leaves) and all(isinstance(one, (np.ndarray, tf.Tensor)) for one in leaves)


def _is_list(given: Any) -> bool:
    return isinstance(given, list) and not _is_arrays(given)


def _converted(given: Any) -> Any:
    if isinstance(given, dict):
        return {name: _converted(part) for name, part in given.items()}
    if isinstance(given, tuple):
        parts = [_converted(part) for part in given]
        return tuple(parts) if type(given) is tuple else type(given)(*parts)  # a named one
    return _array_of(given) if _is_list(given) else given


def _array_of(rows: list[Any]) -> np.ndarray:
    try:
        array = np.asarray(rows)
    except ValueError as error:
        raise DataError(
            f"Asked for a pipeline from arrays and a list; found in the list rows of several "
            f"shapes: {error}. Give rows of one shape, or all samples as one list of tuples."
        ) from error
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    if array.dtype.kind in "US":  # which would cut zeros off the end of bytes
        return np.array(rows, object)
    if array.dtype.kind == "O" and not all(isinstance(v, (str, bytes)) for v in array.flat):
        raise DataError(
            "Asked for a pipeline from arrays and a list; found in the list values that are "
            "neither numbers nor text. Give an array of numbers or text."
        )
    return array


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
