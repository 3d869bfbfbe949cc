"""Any Python object with `__len__` and `__getitem__`: lists, grain, Hugging Face, torch."""

from __future__ import annotations

import collections
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.data.fingerprint import UnkeyableError
from phalanx.data.py_function import python_call
from phalanx.data.sources.lossless_cast import LossyCastError, cast_keeping_values
from phalanx.data.sources.protocol import IndexedSource
from phalanx.errors import DataError

_PROBES = 3
"""Samples that are looked at to learn their shapes."""

_HELD = (list, tuple, range, collections.deque)
"""What holds its samples itself."""


class PythonSource(IndexedSource):
    """`source[i]` for each i, as tensors; several in one call where it has `__getitems__`.

    Shapes and dtypes are learned from the first, the middle and the last sample; an axis in which
    they differ may have any size. A value that the dtype cannot hold is an error, not changed.
    """

    def __init__(self, source: Any) -> None:
        """Look at three samples.

        Raises:
            DataError: their structures differ, or hold what is no array.
        """
        self._source = source
        self.num_samples = len(source)
        probes = sorted({i * (self.num_samples - 1) // (_PROBES - 1) for i in range(_PROBES)})
        samples = [self._at(i) for i in probes] if self.num_samples else [np.zeros([])]
        for sample in samples[1:]:
            _assert_same_structure(samples[0], sample)
        self.element_spec = tf.nest.map_structure(_spec, *samples)
        self._flat_spec = tf.nest.flatten(self.element_spec)
        self._dtypes = [np.dtype(one.dtype.as_numpy_dtype) for one in self._flat_spec]
        self._paths = [f"{path} of " if path else "" for path in _paths(self.element_spec)]
        self.gathers = all(one.shape.is_fully_defined() for one in self._flat_spec)
        # What a source with chance in it gives says nothing of whether workers see the same.
        again = samples[0] if not self.num_samples else self._at(0)
        is_steady = _raw(samples[0]) == _raw(again)
        raw = b"".join(map(_raw, samples)) if is_steady else repr(self.element_spec).encode()
        self.fingerprint = zlib.crc32(raw, self.num_samples)

    def read(self, row: tf.Tensor) -> Any:
        """One sample."""
        return self._as_tensors(self._one, row, [])

    def take(self, rows: tf.Tensor) -> Any:
        """Samples in a batch."""
        return self._as_tensors(self._several, rows, [None])

    def cache_key_parts(self) -> Any:
        """What a list holds; what an object of another class reads is not known."""
        if type(self._source) not in _HELD:
            raise UnkeyableError(
                f"the source is a {type(self._source).__name__}, and what its __getitem__ reads is "
                "not known"
            )
        return self._source

    def _as_tensors(self, python: Any, rows: tf.Tensor, front: list[None]) -> Any:
        found = python_call(python, [rows], [one.dtype for one in self._flat_spec])
        shaped = [
            tf.ensure_shape(value, [*front, *one.shape])
            for value, one in zip(found, self._flat_spec, strict=True)
        ]
        return tf.nest.pack_sequence_as(self.element_spec, shaped)

    def _one(self, row: Any) -> list[np.ndarray]:
        return self._checked(int(row), self._at(int(row)))

    def _several(self, rows: Any) -> list[np.ndarray]:
        numbers = [int(row) for row in rows]
        at_once = getattr(self._source, "__getitems__", None)  # as torch and Hugging Face have it
        items = at_once(numbers) if at_once else (self._source[number] for number in numbers)
        samples = [
            self._checked(number, _as_arrays(item))
            for number, item in zip(numbers, items, strict=True)
        ]
        return [np.stack(parts) for parts in zip(*samples, strict=True)]

    def _checked(self, row: int, sample: Any) -> list[np.ndarray]:
        tf.nest.assert_same_structure(self.element_spec, sample)
        parts = tf.nest.flatten(sample)
        for part, spec in zip(parts, self._flat_spec, strict=True):
            if not spec.shape.is_compatible_with(part.shape):
                raise ValueError(f"shape {part.shape}, where others have {tuple(spec.shape)}")
        return [
            part if part.dtype == dtype else _cast(part, dtype, f"{path}sample {row}")
            for part, dtype, path in zip(parts, self._dtypes, self._paths, strict=True)
        ]

    def _at(self, row: int) -> Any:
        return _as_arrays(self._source[row])


def from_indexable(given: Any) -> PythonSource | None:
    """Of anything with a length and items by number."""
    if isinstance(given, (str, bytes, Mapping)) or hasattr(given, "iloc"):
        return None  # a name; a structure; pandas, whose items are columns
    is_indexable = hasattr(given, "__len__") and hasattr(given, "__getitem__")
    return PythonSource(given) if is_indexable else None


def _as_arrays(sample: Any) -> Any:
    """Tuples and dicts as they are, everything else an array."""
    if isinstance(sample, tuple):
        return tuple(_as_arrays(one) for one in sample)
    if isinstance(sample, Mapping):
        return {name: _as_arrays(one) for name, one in sample.items()}
    array = np.asarray(sample)
    if array.dtype.kind == "f" and not isinstance(sample, (np.ndarray, np.generic)):
        return array.astype(np.float32)
    if array.dtype.kind in "US":  # which would cut zeros off the end of bytes
        return np.array(sample, object)
    if array.dtype.kind == "O" and not all(isinstance(v, (str, bytes)) for v in array.flat):
        raise DataError(
            f"Asked for a pipeline from samples that hold a {type(sample).__name__}, which is no "
            "array. Give numbers, text, arrays, or tuples and dicts of these."
        )
    return array


def _assert_same_structure(one: Any, other: Any) -> None:
    try:
        tf.nest.assert_same_structure(one, other)
        ranks = [
            (a.ndim, b.ndim)
            for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True)
        ]
        same_ranks = all(a == b for a, b in ranks)
    except (TypeError, ValueError):
        same_ranks = False
    if not same_ranks:
        raise DataError(
            "Asked for a pipeline from samples of one structure; found several, such as "
            f"{_shapes(one)} and {_shapes(other)}. Give all samples the same shape."
        )


def _cast(part: np.ndarray, dtype: np.dtype[Any], where: str) -> np.ndarray:
    try:
        return cast_keeping_values(part, dtype)
    except LossyCastError as error:
        raise DataError(
            f"Asked for samples of the dtypes that the first, the middle and the last one have; "
            f"found in {where}: {error}. Convert the values of all samples to one dtype that holds "
            "them, such as float."
        ) from error


def _paths(spec: Any, path: str = "") -> list[str]:
    """For each array of a sample where it is in there, in the order of `tf.nest.flatten`."""
    if isinstance(spec, dict):
        return [found for name in sorted(spec) for found in _paths(spec[name], f"{path}[{name!r}]")]
    if isinstance(spec, tuple):
        return [found for i, one in enumerate(spec) for found in _paths(one, f"{path}[{i}]")]
    return [path]


def _raw(sample: Any) -> bytes:
    return b"".join(repr(one.tolist()).encode() for one in tf.nest.flatten(sample))


def _shapes(sample: Any) -> Any:
    return tf.nest.map_structure(lambda array: array.shape, sample)


def _spec(*arrays: np.ndarray) -> tf.TensorSpec:
    shape = [
        sizes[0] if len(set(sizes)) == 1 else None
        for sizes in zip(*(array.shape for array in arrays), strict=True)
    ]
    return tf.TensorSpec(shape, tf.as_dtype(np.result_type(*arrays)))
