"""How records lie in an uncompressed TFRecord file, and where each of them is.

A record is its length (8 bytes, little-endian), a checksum of that, the bytes, and a checksum of
these; see https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass

import google_crc32c
import numpy as np

from phalanx.errors import DataError

HEADER = 12
FOOTER = 4
_LENGTH = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True, kw_only=True, eq=False)
class Frames:
    """Where the records of a file are.

    Attributes:
        offsets: first byte of each record's own bytes, int64.
        lengths: how many these are, int64.
    """

    offsets: np.ndarray
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets)


def masked_checksum(content: bytes) -> int:
    """The checksum that TFRecord files keep of some bytes."""
    checksum = int(google_crc32c.value(content))
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def scan(file: str) -> Frames:
    """Where the records of an uncompressed local file are; their own bytes are not read.

    Raises:
        DataError: the file is cut off, or a length is not what its checksum says.
    """
    offsets: list[int] = []
    lengths: list[int] = []
    at = 0
    if os.path.getsize(file) == 0:
        return _frames(offsets, lengths)
    with mapped(file) as content:
        size = len(content)
        while at < size:
            if at + HEADER > size:
                raise _damaged(file, len(offsets), "the file ends in its length")
            header = content[at : at + HEADER]
            length, checksum = _LENGTH.unpack(header)
            if masked_checksum(header[:8]) != checksum:
                raise _damaged(file, len(offsets), "its length does not fit its checksum")
            if at + HEADER + length + FOOTER > size:
                raise _damaged(file, len(offsets), "the file ends in it")
            offsets.append(at + HEADER)
            lengths.append(length)
            at += HEADER + length + FOOTER
    return _frames(offsets, lengths)


def _frames(offsets: list[int], lengths: list[int]) -> Frames:
    return Frames(offsets=np.array(offsets, np.int64), lengths=np.array(lengths, np.int64))


def mapped(file: str) -> mmap.mmap:
    """A local file's bytes, read where they are looked at; the file is not empty."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)


def record_at(content: mmap.mmap, offset: int, length: int) -> bytes | None:
    """A record's bytes; None where they are not what their checksum says."""
    record = content[offset : offset + length]
    (checksum,) = _CHECKSUM.unpack(content[offset + length : offset + length + FOOTER])
    return record if masked_checksum(record) == checksum else None


def _damaged(file: str, number: int, why: str) -> DataError:
    return DataError(
        f"Record {number} of {file} is damaged: {why}. Write the file again, or leave it out."
    )
