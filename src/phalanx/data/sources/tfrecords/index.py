"""How many records files have, and where these lie: found once, and remembered next to the file.

What is remembered holds for a file of the same size and time of change. It is a hidden file,
`.NAME.index.npz`, which is left out where the directory cannot be written.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from zipfile import BadZipFile

import numpy as np
import tensorflow as tf

from phalanx.data.sources.tfrecords.files import Compression
from phalanx.data.sources.tfrecords.record_format import Frames, scan
from phalanx.errors import DataError

_AT_ONCE = 8
T = TypeVar("T")


def frames_of(files: Sequence[str], *, remember: bool) -> list[Frames]:
    """Where the records of uncompressed local files are.

    Raises:
        DataError: a file is damaged, or is not on this machine.
    """
    for file in files:
        if not os.path.isfile(file):
            raise DataError(
                f"index=True needs TFRecord files on this machine; found {file}. Copy them, "
                "or leave index out."
            )
    return _each(files, lambda file: _frames(file, remember=remember))


def counts_of(files: Sequence[str], compression: Compression, *, remember: bool) -> list[int]:
    """How many records each file has.

    Raises:
        DataError: a file is damaged.
    """
    return _each(files, lambda file: _count(file, compression, remember=remember))


def _each(files: Sequence[str], find: Callable[[str], T]) -> list[T]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(find, files))


def _frames(file: str, *, remember: bool) -> Frames:
    known = recall(file) if remember else {}
    if "offsets" in known:
        return Frames(offsets=known["offsets"], lengths=known["lengths"])
    frames = scan(file)
    if remember:
        keep(file, offsets=frames.offsets, lengths=frames.lengths)
    return frames


def _count(file: str, compression: Compression, *, remember: bool) -> int:
    if compression == "" and os.path.isfile(file):
        return len(_frames(file, remember=remember))
    known = recall(file) if remember else {}
    if "count" in known:
        return int(known["count"])
    count = count_records(file, compression)
    if remember:
        keep(file, count=np.array(count))
    return count


def count_records(file: str, compression: Compression) -> int:
    """Read a file to its end and count its records.

    Raises:
        DataError: one is damaged.
    """
    records = tf.data.TFRecordDataset(file, compression)
    try:
        return int(records.reduce(np.int64(0), lambda count, _: count + 1))
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError) as error:
        number = _first_damaged(records)
        raise DataError(
            f"Record {number} of {file} is damaged: {error.message}. Write the file again, or "
            "leave it out."
        ) from error


def _first_damaged(records: tf.data.Dataset) -> int:
    number = 0
    with suppress(tf.errors.DataLossError, tf.errors.OutOfRangeError):
        for _ in records:
            number += 1
    return number


def recall(file: str) -> dict[str, np.ndarray]:
    """What was remembered of a file; empty where that is nothing, or of another file."""
    invalid = suppress(OSError, ValueError, KeyError, BadZipFile)
    with invalid, np.load(_index_path(file)) as kept:
        if kept["stamp"].tolist() == _stamp(file):
            return {name: kept[name] for name in kept.files}
    return {}


def keep(file: str, **arrays: np.ndarray) -> None:
    """Remember something of a local file, if its directory can be written."""
    place = _index_path(file)
    with suppress(OSError):
        handle, partial = tempfile.mkstemp(dir=place.parent, prefix=".index-", suffix=".part")
        with os.fdopen(handle, "wb") as stream:
            np.savez(stream, stamp=np.array(_stamp(file), np.int64), **arrays)  # type: ignore[arg-type]
        os.replace(partial, place)


def _stamp(file: str) -> list[int]:
    status = os.stat(file)
    return [status.st_size, status.st_mtime_ns]


def _index_path(file: str) -> Path:
    path = Path(file)
    return path.with_name(f".{path.name}.index.npz")
