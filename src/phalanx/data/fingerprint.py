"""A few bytes that tell whether two workers hold the same data."""

from __future__ import annotations

import zlib
from typing import Any

import keras
import tensorflow as tf

_ROWS = 8


def fingerprint(inputs: Any, num_samples: int) -> int:
    """A checksum of some rows, from first to last, of every tensor in `inputs`."""
    rows = sorted({i * (num_samples - 1) // (_ROWS - 1) for i in range(_ROWS)})
    checksum = 0
    for tensor in keras.tree.flatten(inputs):
        if isinstance(tensor, tf.Tensor):
            taken = tf.gather(tensor, rows).numpy()
            raw = b"".join(taken.ravel()) if taken.dtype == object else taken.tobytes()
            checksum = zlib.crc32(raw, checksum)
    return checksum
