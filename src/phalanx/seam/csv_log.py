"""Keras's CSVLogger when training goes on: its file goes on too.

`CSVLogger` begins its file anew at each `fit`, or with `append=True` adds to it; neither is
right after a restart, where the epochs before stay and those to be trained again go.
"""

from __future__ import annotations

import csv
import io
from typing import Any

import keras
import tensorflow as tf


def go_on_from(callback: Any, epoch: int) -> None:
    """Keep the lines of the epochs before `epoch`, and have the callback add to them."""
    if not isinstance(callback, keras.callbacks.CSVLogger):
        return
    if not tf.io.gfile.exists(callback.filename):
        return
    with tf.io.gfile.GFile(callback.filename) as stream:
        lines = list(csv.reader(io.StringIO(stream.read()), delimiter=callback.sep))
    kept = io.StringIO()
    writer = csv.writer(kept, delimiter=callback.sep, lineterminator="\n")
    writer.writerows(line for i, line in enumerate(lines) if i == 0 or _epoch_of(line) < epoch)
    with tf.io.gfile.GFile(callback.filename, "w") as stream:
        stream.write(kept.getvalue())
    callback.append = True


def _epoch_of(line: list[str]) -> int:
    try:
        return int(line[0])
    except (IndexError, ValueError):
        return 0  # not a line of Keras's: not ours to remove
