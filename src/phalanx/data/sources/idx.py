"""IDX files, as MNIST comes in: a header of sizes, then numbers.

The format: http://yann.lecun.com/exdb/mnist/
"""

from __future__ import annotations

import gzip
import math
import os
from typing import Any

import numpy as np

from phalanx.data.sources.arrays import ArraySource
from phalanx.data.sources.files import expand_files, is_file_pattern, read_whole
from phalanx.errors import DataError

_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP = b"\x1f\x8b"


def idx(*files: Any) -> ArraySource:
    """Samples from IDX files, plain or gzipped: images, and labels where given.

    Args:
        files: one file for each part of a sample: `idx("train-images-idx3-ubyte.gz",
            "train-labels-idx1-ubyte.gz")` gives (image, label).

    Raises:
        DataError: a file is no IDX file or is cut off, or they differ in length.
    """
    names = [name for given in files for name in expand_files(given)]
    arrays = tuple(read_idx(name) for name in names)
    return ArraySource(
        arrays if len(arrays) > 1 else arrays[0],
        where=lambda row: f"sample {row} of {names[0]}",
    )


def from_idx(given: Any) -> ArraySource | None:
    """Of names such as "train-images-idx3-ubyte.gz"."""
    if not is_file_pattern(given):
        return None
    names = expand_files(given)
    return idx(*names) if all(_is_idx_name(name) for name in names) else None


def read_idx(name: str) -> np.ndarray:
    """The array in an IDX file."""
    raw = read_whole(name)
    try:
        content = gzip.decompress(raw) if raw.startswith(_GZIP) else raw
    except (OSError, EOFError) as error:
        raise DataError(f"Asked to read the file {name}; it cannot be read: {error}.") from error
    rank = content[3] if len(content) > 3 else 0
    header = 4 + 4 * rank
    if len(content) < header or content[:2] != b"\0\0" or content[2] not in _DTYPES:
        raise DataError(
            f"Asked to read {name} as an IDX file; found it begins with {content[:4].hex(' ')}. "
            "IDX files begin with 00 00, a type and the number of axes."
        )
    shape = tuple(int(n) for n in np.frombuffer(content[4:header], ">u4"))
    dtype = np.dtype(_DTYPES[content[2]])
    expected = header + math.prod(shape) * dtype.itemsize
    if len(content) != expected:
        raise DataError(
            f"Asked to read {name}, whose header names {shape}, which is {expected} bytes; "
            f"found {len(content)}. Get the file again."
        )
    numbers = np.frombuffer(content, dtype, offset=header).reshape(shape)
    return numbers.astype(dtype.newbyteorder("="))


def _is_idx_name(name: str) -> bool:
    base = os.path.basename(name).removesuffix(".gz")
    return base.endswith(".idx") or any(f"idx{rank}-" in base for rank in range(1, 6))
