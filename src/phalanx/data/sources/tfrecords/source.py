"""TFRecord files as a source of samples: as a stream, or by number with an index."""

from __future__ import annotations

import functools
import mmap
import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.data.py_function import python_call
from phalanx.data.sources.files import content_stamps, stamps
from phalanx.data.sources.protocol import IndexedSource, StreamSource
from phalanx.data.sources.tfrecords.files import (
    Compression,
    are_copied,
    compression_of,
    matching_files,
)
from phalanx.data.sources.tfrecords.index import count_records, counts_of, frames_of
from phalanx.data.sources.tfrecords.record_format import FOOTER, HEADER, Frames, mapped, record_at
from phalanx.data.sources.tfrecords.schema import Schema
from phalanx.errors import ConfigurationError, DataError, NoSamplesError

Parse = Callable[[tf.Tensor], Any]
"""Samples, in a batch, of a batch of records (1-D strings); traced by TensorFlow."""

Stamp = Callable[[], tuple[Any, ...]]
"""A value that changes with the content of the files."""

_MOST_OPEN = 256


def tfrecords(
    files: str | Sequence[str],
    *,
    features: dict[str, Any] | None = None,
    supervised: tuple[str, ...] | None = None,
    index: bool = False,
    compression: str | None = None,
    remember: bool = True,
) -> StreamSource | IndexedSource:
    """TFRecord files as a source for `phalanx.data.pipeline`.

    Args:
        files: names or patterns, local, known to TensorFlow (`gs://`), or to fsspec (`s3://`; those
            are copied to this machine).
        features: what `tf.io.parse_example` needs to know, with features of fixed length; samples
            are dicts then. By default what `write_tfrecords` left next to the files; where that is
            not there either, samples are the records' bytes, for `map=` to parse.
        supervised: the features' names, in order, of which samples are to be tuples: `("image",
            "label")`.
        index: whether to find out where every record lies, so that samples can be taken by number:
            the global order is exact then, and a training continues at once where it stopped. The
            files must be plain, and on this machine.
        compression: "", "GZIP" or "ZLIB"; by default what the files look like.
        remember: whether to keep what was counted or indexed in hidden files next to them.

    Raises:
        DataError: no file matches, there is no record in them, or one is damaged.
        ConfigurationError: the files are compressed and index is set, or a feature cannot be
            batched.
    """
    names = matching_files(files)
    kind = compression_of(names, compression)
    if index and kind:
        raise ConfigurationError(
            f"index=True needs plain TFRecord files; found {kind} in {names[0]}. Leave index out, "
            "or write the files without compression."
        )
    parse = _parse(names, features, supervised)
    # A copy has another name and time in each process.
    stamp: Stamp = functools.partial(stamps, names, by_tensorflow=True)
    if are_copied(files):
        stamp = functools.partial(content_stamps, names)
    if index:
        found = stamp()  # before the files are opened: another content is a later one
        frames = frames_of(names, remember=remember)
        return IndexedTFRecords(names, frames, parse, lambda: found)
    return TFRecordStream(names, counts_of(names, kind, remember=remember), kind, parse, stamp)


def from_tfrecords(given: Any) -> StreamSource | None:
    """Of the names or patterns of `.tfrecord` files, compressed ones among them."""
    names = [given] if isinstance(given, (str, os.PathLike)) else given
    if not isinstance(names, (list, tuple)) or not names:
        return None
    texts = [os.fspath(name) for name in names if isinstance(name, (str, os.PathLike))]
    if len(texts) < len(names) or not all(".tfrecord" in os.path.basename(t) for t in texts):
        return None
    source = tfrecords(texts)
    assert isinstance(source, StreamSource)
    return source


class TFRecordStream(StreamSource):
    """Records in the order of their files."""

    def __init__(
        self,
        files: tuple[str, ...],
        counts: Sequence[int],
        compression: Compression,
        parse: Parse,
        stamp: Stamp,
    ) -> None:
        _refuse_nothing(files, sum(counts))
        self.files = files
        self.counts = tuple(counts)
        self.element_spec = _spec(parse)
        sizes = [tf.io.gfile.stat(file).length for file in files]
        self.fingerprint = zlib.crc32(repr((self.counts, sizes, self.element_spec)).encode())
        self._compression = compression
        self._parse = parse
        self._stamp = stamp

    def open(self, file: tf.Tensor) -> tf.data.Dataset:
        """The records of one file; an error that names the first that is damaged."""
        # What follows the records is asked for only where one of them is missing.
        missing = tf.data.Dataset.from_tensors(file).map(self._missing)
        return tf.data.TFRecordDataset(file, self._compression).ignore_errors().concatenate(missing)

    def record(self, file: str, number: int) -> Any:
        """One record, as a tensor; without a call of Python, which would wait for this one."""
        (record,) = tf.data.TFRecordDataset(file, self._compression).skip(number).take(1)
        return record

    def _missing(self, file: tf.Tensor) -> tf.Tensor:
        found = python_call(self._name_damage, [file], tf.string)
        return tf.ensure_shape(found, [])

    def _name_damage(self, file: bytes) -> bytes:
        name = file.decode()
        count = count_records(name, self._compression)
        raise DataError(
            f"Asked for all records of {name}; found {count}, and more when they were counted. Do "
            "not write to files that are being read."
        )

    def finish(self, batch: tf.Tensor) -> Any:
        """Samples, in a batch, of a batch of records."""
        return self._parse(batch)

    def cache_key_parts(self) -> Any:
        """The files, and how their records are parsed."""
        return (self._stamp(), self.counts, self._compression, self._parse)

    def __repr__(self) -> str:
        return f"{len(self.files)} TFRecord files with {self.num_samples} records"


class IndexedTFRecords(IndexedSource):
    """Records by their number, in the order of the files."""

    gathers = True

    def __init__(
        self, files: tuple[str, ...], frames: Sequence[Frames], parse: Parse, stamp: Stamp
    ) -> None:
        counts = [len(one) for one in frames]
        self.num_samples = sum(counts)
        _refuse_nothing(files, self.num_samples)
        self.element_spec = _spec(parse)
        self._files = files
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._offsets = np.concatenate([one.offsets for one in frames])
        self._lengths = np.concatenate([one.lengths for one in frames])
        self._parse = parse
        self._stamp = stamp
        self._mapped = functools.lru_cache(_MOST_OPEN)(mapped)
        self.fingerprint = zlib.crc32(self._lengths.tobytes(), zlib.crc32(self._starts.tobytes()))

    def take(self, rows: tf.Tensor) -> Any:
        """Samples in a batch; read in Python, parsed in TensorFlow."""
        records = python_call(self._read, [rows], tf.string, stateful=False)
        return self._parse(tf.ensure_shape(records, [None]))

    def read(self, row: tf.Tensor) -> Any:
        """One sample, read by TensorFlow alone, as a `tf.data` service needs it."""
        file = tf.searchsorted(self._starts[1:], [row], side="right")[0]
        first = tf.gather(self._offsets, row) - HEADER
        size = HEADER + tf.gather(self._lengths, row) + FOOTER
        records = tf.raw_ops.TFRecordDatasetV2(
            filenames=tf.gather(tf.constant(self._files), file),
            compression_type="",
            buffer_size=size,
            byte_offsets=first,
        )
        record = tf.raw_ops.DatasetToSingleElement(
            dataset=tf.raw_ops.TakeDataset(
                input_dataset=records, count=1, output_types=[tf.string], output_shapes=[[]]
            ),
            output_types=[tf.string],
            output_shapes=[[]],
        )[0]
        sample = self._parse(tf.reshape(record, [1]))
        return tf.nest.map_structure(lambda one: one[0], sample)

    def cache_key_parts(self) -> Any:
        """The files, and how their records are parsed."""
        return (self._stamp(), self._starts, self._parse)

    def where(self, row: int) -> str:
        """The file, and the record's number in it from 0."""
        file = int(np.searchsorted(self._starts[1:], row, side="right"))
        return f"record {row - int(self._starts[file])} of {self._files[file]}"

    def _read(self, rows: np.ndarray) -> np.ndarray:
        records = np.empty(len(rows), object)
        numbers = np.searchsorted(self._starts[1:], rows, side="right")
        places = zip(numbers, self._offsets[rows], self._lengths[rows], strict=True)
        for i, (file, offset, length) in enumerate(places):
            content: mmap.mmap = self._mapped(self._files[file])
            records[i] = record_at(content, int(offset), int(length))
            if records[i] is None:
                raise DataError(
                    f"{self.where(int(rows[i]))} is damaged: its bytes do not fit their checksum. "
                    'Write the file again, or give pipeline on_error="skip".'
                )
        return records

    def __repr__(self) -> str:
        return f"{len(self._files)} indexed TFRecord files with {self.num_samples} records"


def _parse(
    files: Sequence[str], features: dict[str, Any] | None, supervised: tuple[str, ...] | None
) -> Parse:
    if features is None and supervised is None:
        schema = Schema.from_files(files)
        return tf.identity if schema is None else schema.parse
    given = features or (Schema.from_files(files) or _no_schema(files)).features()
    odd = [n for n, f in given.items() if not isinstance(f, tf.io.FixedLenFeature)]
    if odd:
        raise ConfigurationError(
            f"features must be of fixed length, to be put into batches; found {odd}. Leave "
            "features out and parse the records in map=."
        )
    missing = [name for name in supervised or () if name not in given]
    if missing:
        raise ConfigurationError(f"supervised names {missing}; found the features {sorted(given)}.")

    def parse(records: tf.Tensor) -> Any:
        parsed = tf.io.parse_example(records, given)
        return tuple(parsed[name] for name in supervised) if supervised else parsed

    return parse


def _no_schema(files: Sequence[str]) -> Schema:
    raise ConfigurationError(
        f"supervised needs features=; found no schema next to {files[0]}. Say what "
        "tf.io.parse_example needs to know."
    )


def _spec(parse: Parse) -> Any:
    """`tf.TensorSpec`s of one sample."""
    records = tf.TensorSpec([None], tf.string)
    outputs = tf.function(parse).get_concrete_function(records).structured_outputs
    return tf.nest.map_structure(lambda one: tf.TensorSpec(one.shape[1:], one.dtype), outputs)


def _refuse_nothing(files: Sequence[str], samples: int) -> None:
    if samples == 0:
        raise NoSamplesError(
            f"Asked to read {len(files)} TFRecord file(s), such as {files[0]}; found no record in "
            "them. Write them first, or fix the pattern."
        )
