"""Samples that are read once: kept by their number, so that order and chance stay free.

`Dataset.cache` keeps elements in the order in which they first came, which freezes shuffling
and augmentation above it. These keep each sample on its own.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from typing import Any, Protocol

import tensorflow as tf

from phalanx.data.fingerprint import UnkeyableError, fingerprint
from phalanx.data.pipelines.options import PipelineOptions
from phalanx.data.py_function import python_call
from phalanx.data.sources.protocol import IndexedSource, StreamSource
from phalanx.errors import ConfigurationError

_log = logging.getLogger(__name__)
_PER_FOLDER = 1000
_CRC_BYTES = 4
_A_DAY = 24 * 3600
_FORMAT = 2  # of the files, and of the values behind a key


class SampleCache(Protocol):
    """Bytes by sample number, looked up and stored in a graph."""

    def lookup(self, row: tf.Tensor) -> tf.Tensor:
        """What is kept of sample `row`; "" for nothing."""

    def put(self, row: tf.Tensor, content: tf.Tensor) -> Any:
        """Keep `content` for sample `row`; gives an operation to wait for."""

    def contains(self, rows: tf.Tensor) -> tf.Tensor:
        """Whether something is kept of each of these samples; scalar bool."""


class MemoryCache:
    """In the memory of this process, in a table of TensorFlow's; all iterators share it."""

    def __init__(self) -> None:
        """Nothing is kept yet."""
        with tf.init_scope(), tf.device("CPU:0"):
            self._table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.string, "")
            # To ask without copying what is kept.
            self._held = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)

    def lookup(self, row: tf.Tensor) -> tf.Tensor:
        """What is kept of sample `row`; "" for nothing."""
        return self._table.lookup(row)

    def put(self, row: tf.Tensor, content: tf.Tensor) -> Any:
        """Keep `content` for sample `row`."""
        with tf.control_dependencies([self._table.insert(row, content)]):
            return self._held.insert(row, tf.constant(1, tf.int64))

    def contains(self, rows: tf.Tensor) -> tf.Tensor:
        """Whether something is kept of each of these samples."""
        return tf.reduce_all(self._held.lookup(rows) > 0)


class DiskCache:
    """One file for each sample, whole or absent; workers and later runs share them.

    A file is written next to its place and then renamed. Its checksum covers the number of the
    sample too. Whatever does not fit is as good as absent: the sample is made and written again.
    """

    def __init__(self, directory: str, identity: str) -> None:
        """Keep below `directory` what belongs to `identity`: other data has another place."""
        self._directory = os.path.join(os.path.expanduser(directory), identity)
        self._unfinished = os.path.join(self._directory, "unfinished")
        os.makedirs(self._unfinished, exist_ok=True)
        _remove_old(self._unfinished)
        self._is_full = False

    def lookup(self, row: tf.Tensor) -> tf.Tensor:
        """What is kept of sample `row`; "" for nothing."""
        found = python_call(self._read, [row], tf.string, stateful=False)
        return tf.ensure_shape(found, [])

    def put(self, row: tf.Tensor, content: tf.Tensor) -> Any:
        """Keep `content` for sample `row`."""
        return python_call(self._write, [row, content], tf.bool)

    def contains(self, rows: tf.Tensor) -> tf.Tensor:
        """Whether something is kept of each of these samples."""
        found = python_call(self._has, [rows], tf.bool)
        return tf.ensure_shape(found, [])

    def _path(self, row: int) -> str:
        return os.path.join(self._directory, str(row // _PER_FOLDER), str(row))

    def _has(self, rows: Any) -> bool:
        return all(os.path.exists(self._path(int(row))) for row in rows)

    def _read(self, row: Any) -> bytes:
        try:
            with open(self._path(int(row)), "rb") as file:
                whole = file.read()
        except OSError:
            return b""
        content = whole[_CRC_BYTES:]
        return content if whole[:_CRC_BYTES] == _checksum(int(row), content) else b""

    def _write(self, row: Any, content: bytes) -> bool:
        if self._is_full:
            return False
        path = self._path(int(row))
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            handle, partial = tempfile.mkstemp(dir=self._unfinished)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_checksum(int(row), content) + content)
                os.replace(partial, path)
            except BaseException:
                with suppress(OSError):
                    os.remove(partial)
                raise
        except OSError as error:
            self._is_full = True
            _log.warning(
                "The cache in %s takes no more (%s); training continues without. Make room, or "
                "leave cache= out.",
                self._directory,
                error,
            )
            return False
        return True


def _checksum(row: int, content: bytes) -> bytes:
    start = zlib.crc32(row.to_bytes(8, "big"))
    return zlib.crc32(content, start).to_bytes(_CRC_BYTES, "big")


def _remove_old(directory: str) -> None:
    """Remove what writers that were killed have left."""
    until = time.time() - _A_DAY
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.stat().st_mtime < until:
                    os.remove(entry.path)


def cache_of(options: PipelineOptions, key: str | None, spec: Any) -> SampleCache | None:
    """What was asked for: in memory, on disk, or none.

    Args:
        options: the pipeline's options.
        key: what `cache_key` gave.
        spec: `tf.TensorSpec`s of a sample as it is kept.
    """
    if options.cache == "memory":
        return MemoryCache()
    if options.cache_directory:
        return DiskCache(options.cache_directory, fingerprint((key, repr(spec)), "the cache"))
    return None


def cache_key(options: PipelineOptions, source: IndexedSource | StreamSource) -> str | None:
    """What the samples of a cache on disk follow from, as text; None for another cache.

    Raises:
        ConfigurationError: a part of it can change without a trace.
    """
    if not options.cache_directory:
        return None
    versions = (_FORMAT, version("phalanx"), tf.__version__)
    if options.cache_key is not None:
        parts = (versions, "cache_key", options.cache_key, source.num_samples)
        return fingerprint(parts, "the cache")
    try:
        data = fingerprint((type(source).__name__, source.cache_key_parts()), "the source")
        function = fingerprint(options.map, "map")
    except UnkeyableError as error:
        raise ConfigurationError(
            f"Asked for cache={options.cache!r}; found no key for its samples: {error}. Pass "
            'cache_key="...", a name for these samples, and change it whenever the source or map= '
            'changes; or take cache="memory".'
        ) from error
    return fingerprint((versions, data, function, source.num_samples), "the cache")


def cached(cache: SampleCache, row: tf.Tensor, spec: Any, make: Callable[[], Any]) -> Any:
    """The sample that `make()` gives, made once.

    Args:
        cache: where it is kept.
        row: its number.
        spec: of what `make` gives; sparse and ragged tensors are kept by their parts.
        make: reads the sample; traced.
    """
    content = cache.lookup(row)
    specs = tf.nest.flatten(spec, expand_composites=True)

    def stored() -> list[tf.Tensor]:
        parts = tf.io.parse_tensor(content, tf.string)
        found = [tf.io.parse_tensor(parts[i], one.dtype) for i, one in enumerate(specs)]
        return [tf.ensure_shape(v, one.shape) for v, one in zip(found, specs, strict=True)]

    def made() -> list[tf.Tensor]:
        values = tf.nest.flatten(make(), expand_composites=True)
        parts = tf.stack([tf.io.serialize_tensor(value) for value in values])
        with tf.control_dependencies([cache.put(row, tf.io.serialize_tensor(parts))]):
            return [tf.identity(value) for value in values]

    found = tf.cond(tf.strings.length(content) > 0, stored, made)
    found = [tf.ensure_shape(v, one.shape) for v, one in zip(found, specs, strict=True)]
    return tf.nest.pack_sequence_as(spec, found, expand_composites=True)
