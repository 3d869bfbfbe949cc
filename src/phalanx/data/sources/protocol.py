"""What a source of samples is: one that is asked by number, or one that is read from its start.

A sample is what `fit` takes, without the batch axis: `(x, y)`, a dict, one tensor. A new kind
of source is a class below one of these two, and a line in `choose.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.data.fingerprint import UnkeyableError


class IndexedSource(ABC):
    """Samples that can be taken by number, from 0.

    Attributes:
        num_samples: how many.
        element_spec: `tf.TensorSpec`s of one sample, without a batch axis.
        gathers: whether `take` gives many samples in one operation. Others are read one by
            one, several batches at a time.
        can_fail: whether a sample may turn out unreadable.
        labels: the class of each sample, where the source knows; int64.
        fingerprint: equal on all workers that see the same data; None if it cannot be
            determined.
    """

    num_samples: int
    element_spec: Any
    gathers: bool = False
    can_fail: bool = True
    labels: np.ndarray | None = None
    fingerprint: int | None = None

    @abstractmethod
    def read(self, row: tf.Tensor) -> Any:
        """One sample; traced by TensorFlow. `row` is a scalar int64."""

    def take(self, rows: tf.Tensor) -> Any:
        """Samples in a batch, if the source `gathers`; `rows` is a 1-D int64, not empty."""
        raise NotImplementedError

    def where(self, row: int) -> str:
        """The sample's place, for messages: "file digits/7/12.png", "file a.csv, row 4"."""
        return f"sample {row}"

    def cache_key_parts(self) -> Any:
        """What the samples follow from, for the key of a cache on disk.

        Raises:
            UnkeyableError: they can change without a trace.
        """
        raise _unknown(self)


class StreamSource(ABC):
    """Samples in files that are read from their start, such as compressed TFRecords.

    Attributes:
        files: their names, in an order that is the same on every worker.
        counts: samples in each file, where all are known.
        element_spec: `tf.TensorSpec`s of one sample, without a batch axis.
        fingerprint: equal on all workers that see the same files.
    """

    files: tuple[str, ...]
    counts: tuple[int, ...] | None = None
    element_spec: Any
    fingerprint: int | None = None

    @abstractmethod
    def open(self, file: tf.Tensor) -> tf.data.Dataset:
        """The samples of one file in their order; traced. `file` is a scalar string."""

    def record(self, file: str, number: int) -> Any:
        """One of what `open` gives, as tensors, in Python; for a sample whose cache was damaged."""
        (record,) = self.open(tf.constant(file)).skip(number).take(1)
        return record

    def finish(self, batch: Any) -> Any:
        """Samples, in a batch, of a batch of what `open` gives; traced.

        What is done here is done for a worker's own rows alone: parsing belongs here.
        """
        return batch

    @property
    def num_samples(self) -> int | None:
        """How many samples there are, where known."""
        return None if self.counts is None else sum(self.counts)

    def cache_key_parts(self) -> Any:
        """What the samples follow from, for the key of a cache on disk.

        Raises:
            UnkeyableError: they can change without a trace.
        """
        raise _unknown(self)


def _unknown(source: Any) -> UnkeyableError:
    return UnkeyableError(
        f"the source is a {type(source).__name__}, which does not say what its samples follow from"
    )
