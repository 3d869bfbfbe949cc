"""ArrayRecord files: records that can be taken by number. https://github.com/google/array_record"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.data.py_function import python_call
from phalanx.data.sources.files import expand_files, is_file_pattern, matching, stamps, suffix_of
from phalanx.data.sources.protocol import IndexedSource
from phalanx.errors import ConfigurationError, DataError

_ENDINGS = (".array_record", ".arrayrecord")


class ArrayRecords(IndexedSource):
    """The records of several files, one file after the other."""

    def __init__(self, files: tuple[str, ...], features: Mapping[str, Any] | None) -> None:
        """Open the files and count; no record is read."""
        module = _library()
        self._stamps = stamps(files)  # before the files are opened: another content is a later one
        self._readers = [_open(module, name) for name in files]
        self._files = files
        self._features = None if features is None else dict(features)
        counts = [reader.num_records() for reader in self._readers]
        self._ends = np.cumsum(counts)
        self.num_samples = int(self._ends[-1])
        self.element_spec = tf.data.Dataset.range(1).map(self.read).element_spec
        self.fingerprint = zlib.crc32(repr(counts).encode())

    def read(self, row: tf.Tensor) -> Any:
        """One record, parsed where features are given."""
        record = tf.ensure_shape(python_call(self._record, [row], tf.string), [])
        if self._features is None:
            return record
        return tf.io.parse_single_example(record, self._features)

    def cache_key_parts(self) -> Any:
        """The files, and how their records are parsed."""
        return (self._stamps, self._features)

    def where(self, row: int) -> str:
        """The record's file and its number there."""
        number, own = self._place(row)
        return f"record {own} of {self._files[number]}"

    def _place(self, row: int) -> tuple[int, int]:
        number = int(np.searchsorted(self._ends, row, side="right"))
        return number, row - (int(self._ends[number - 1]) if number else 0)

    def _record(self, row: Any) -> bytes:
        number, own = self._place(int(row))
        (record,) = self._readers[number].read([own])
        return bytes(record)


def array_records(files: Any, *, features: Mapping[str, Any] | None = None) -> ArrayRecords:
    """Records of ArrayRecord files, by number.

    Args:
        files: a path, a pattern or a list of these.
        features: how to parse records that are `tf.train.Example`s, as
            `tf.io.parse_single_example` takes it. Where None a sample is a record's bytes,
            which `map=` parses.

    Raises:
        DataError: no such file, or one that is no ArrayRecord file.
        ConfigurationError: the package array_record is not installed.
    """
    return ArrayRecords(matching(files), features)


def from_array_records(given: Any) -> ArrayRecords | None:
    """Of names that end in .array_record."""
    if not is_file_pattern(given):
        return None
    return array_records(given) if suffix_of(expand_files(given)) in _ENDINGS else None


def _library() -> Any:
    try:
        return importlib.import_module("array_record.python.array_record_module")
    except ImportError as error:
        raise ConfigurationError(
            "Asked to read ArrayRecord files; the package array_record is not installed. "
            "Install phalanx[data]."
        ) from error


def _open(module: Any, name: str) -> Any:
    reader = module.ArrayRecordReader(name)
    if not reader.ok():  # it says no more
        raise DataError(f"Asked to read {name} as ArrayRecord; it is none. Get the file again.")
    return reader
