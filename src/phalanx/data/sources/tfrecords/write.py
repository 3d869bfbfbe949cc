"""`phalanx.data.write_tfrecords`: samples to TFRecord files, several files at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Literal

import cloudpickle
import numpy as np
import tensorflow as tf

from phalanx.data.sources.arrays import lists_as_arrays
from phalanx.data.sources.tfrecords.schema import Schema
from phalanx.errors import ConfigurationError, DataError
from phalanx.monitoring.durable_files import move_durably

Serialize = Callable[[Any], bytes]
Parallel = Literal["threads", "processes"]
_ENDINGS = {"": "", "GZIP": ".gz", "ZLIB": ".zlib"}


def write_tfrecords(
    samples: Any,
    path: str,
    *,
    shards: int = 1,
    serialize: Serialize | None = None,
    compression: str = "",
    workers: int | None = None,
    parallel: Parallel = "threads",
) -> tuple[str, ...]:
    """Write samples to `PATH-00000-of-00004.tfrecord` and so on; each file whole, or not at all.

    Args:
        samples: arrays (one, a tuple, or a dict by name) with equal first axes, or anything with
            `__len__` and `__getitem__` that gives such samples.
        path: the files' names but for their number.
        shards: how many files; each gets neighbouring samples.
        serialize: a sample as bytes. By default a `tf.train.Example`, and `schema.json` next to the
            files says how to read it: `phalanx.data.tfrecords` does on its own.
        compression: "", "GZIP" or "ZLIB". Only plain files can be indexed.
        workers: how many files are written at a time; as many as there are cores by default.
        parallel: "threads", or "processes" where `samples` or `serialize` keep Python busy: these
            are sent to fresh processes, which takes some seconds and their memory.

    Returns:
        The files' names.

    Raises:
        DataError: there are fewer samples than shards; a sample differs from the first in its keys
            or shapes, or has a value that the dtype of the first cannot hold; or the directory
            has the schema of other files.
        ConfigurationError: an argument is none of what it may be.
    """
    if compression not in _ENDINGS:
        raise ConfigurationError(
            f"compression must be '', 'GZIP' or 'ZLIB'; found {compression!r}."
        )
    if parallel not in ("threads", "processes"):
        raise ConfigurationError(f"parallel must be 'threads' or 'processes'; found {parallel!r}.")
    if shards < 1 or (workers is not None and workers < 1):
        raise ConfigurationError(
            f"write_tfrecords needs at least one shard and one worker; found shards={shards}, "
            f"workers={workers}."
        )
    rows = _Rows(samples)
    if len(rows) < shards:
        raise DataError(
            f"Asked to write {len(rows)} samples to {shards} files. Give more samples or fewer "
            "shards: an empty file is of no use to a worker."
        )
    tf.io.gfile.makedirs(os.path.dirname(path) or ".")
    names = [
        f"{path}-{shard:05d}-of-{shards:05d}.tfrecord{_ENDINGS[compression]}"
        for shard in range(shards)
    ]
    schema = Schema.of(rows[0]) if serialize is None else None
    if schema is not None:
        schema.write(names)
    tasks = [
        _Task(
            rows=rows,
            first=shard * len(rows) // shards,
            end=(shard + 1) * len(rows) // shards,
            file=names[shard],
            compression=compression,
            serialize=serialize,
            schema=schema,
        )
        for shard in range(shards)
    ]
    at_once = min(shards, workers or len(os.sched_getaffinity(0)))
    with _pool(parallel, at_once) as pool:
        if parallel == "threads":
            return tuple(pool.map(_write, tasks))
        return tuple(pool.map(_write_pickled, [cloudpickle.dumps(task) for task in tasks]))


class _Rows:
    """Samples by number."""

    def __init__(self, samples: Any) -> None:
        samples = lists_as_arrays(samples)
        self._samples = samples
        self._is_arrays = isinstance(samples, (tuple, dict, np.ndarray))
        if not self._is_arrays and not hasattr(samples, "__getitem__"):
            raise DataError(
                f"Asked to write a {type(samples).__name__}. Give arrays, or an object with "
                "__len__ and __getitem__."
            )
        lengths = {len(one) for one in tf.nest.flatten(samples)} if self._is_arrays else set()
        if len(lengths) > 1:
            raise DataError(f"Asked to write arrays of different lengths: {sorted(lengths)}.")
        self._length = lengths.pop() if lengths else len(samples)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: int) -> Any:
        if self._is_arrays:
            return tf.nest.map_structure(lambda one: one[row], self._samples)
        return self._samples[row]


@dataclass(frozen=True, kw_only=True)
class _Task:
    """The samples `first` to `end`, the file for them, and what makes records of them."""

    rows: _Rows
    first: int
    end: int
    file: str
    compression: str
    serialize: Serialize | None
    schema: Schema | None

    def record(self, row: int) -> bytes:
        sample = self.rows[row]
        if self.serialize is not None:
            return self.serialize(sample)
        assert self.schema is not None
        return self.schema.example(sample, row)


def _pool(parallel: Parallel, at_once: int) -> Executor:
    if parallel == "threads":
        return ThreadPoolExecutor(at_once)
    return ProcessPoolExecutor(at_once, mp_context=get_context("spawn"))


def _write_pickled(task: bytes) -> str:
    return _write(cloudpickle.loads(task))


def _write(task: _Task) -> str:
    partial = f"{task.file}.{os.getpid()}.part"
    with tf.io.TFRecordWriter(partial, task.compression) as writer:
        for row in range(task.first, task.end):
            writer.write(task.record(row))
    if "://" in task.file:
        tf.io.gfile.rename(partial, task.file, overwrite=True)
    else:
        move_durably(partial, task.file)
    return task.file
