"""Some neighbouring rows of a source, as a source."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.data.sources.protocol import IndexedSource, StreamSource


def rows_of_source(
    source: IndexedSource | StreamSource, rows: range
) -> IndexedSource | StreamSource:
    """Those rows, which are not empty, in their order.

    Args:
        source: where they are; a stream knows its counts.
        rows: neighbours, from 0.
    """
    if len(rows) == source.num_samples:
        return source
    if isinstance(source, StreamSource):
        return StreamRows(source, rows)
    return IndexedRows(source, rows)


class IndexedRows(IndexedSource):
    """Rows that are taken by number."""

    def __init__(self, source: IndexedSource, rows: range) -> None:
        self._source = source
        self._first = rows.start
        self.num_samples = len(rows)
        self.element_spec = source.element_spec
        self.gathers = source.gathers
        self.can_fail = source.can_fail

    def read(self, row: tf.Tensor) -> Any:
        """One sample."""
        return self._source.read(row + self._first)

    def take(self, rows: tf.Tensor) -> Any:
        """Samples in a batch."""
        return self._source.take(rows + self._first)

    def where(self, row: int) -> str:
        """The sample's place in the whole source."""
        return self._source.where(row + self._first)


class StreamRows(StreamSource):
    """Rows of those files that have some; what comes before them is read and not parsed."""

    def __init__(self, source: StreamSource, rows: range) -> None:
        counts = np.array(source.counts, np.int64)
        ends = np.cumsum(counts)
        skips = np.maximum(rows.start - (ends - counts), 0)
        takes = np.minimum(rows.stop, ends) - (ends - counts) - skips
        used = np.flatnonzero(takes > 0)
        self._source = source
        self._skips, self._takes = skips[used], takes[used]
        self.files = tuple(source.files[i] for i in used)
        self.counts = tuple(int(count) for count in self._takes)
        self.element_spec = source.element_spec

    def open(self, file: tf.Tensor) -> tf.data.Dataset:
        """The rows of one file."""
        number = tf.argmax(tf.equal(tf.constant(self.files), file))
        rows = self._source.open(file).skip(tf.gather(self._skips, number))
        return rows.take(tf.gather(self._takes, number))

    def finish(self, batch: Any) -> Any:
        """Samples, in a batch, of a batch of what `open` gives."""
        return self._source.finish(batch)
