"""A source that is read from its start, with all that was asked of it."""

from __future__ import annotations

import itertools

import numpy as np
import tensorflow as tf

from phalanx.data.batches import no_autograph
from phalanx.data.pipelines.local_rows import Make, replica_part
from phalanx.data.pipelines.options import PipelineOptions
from phalanx.data.py_function import python_call
from phalanx.data.sources.protocol import StreamSource
from phalanx.data.streams.record_parser import RecordParser
from phalanx.data.streams.stream_batches import StreamBatches
from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import ConfigurationError, DataError

_NEEDS_NUMBERS = ("balance", "service")


class StreamPipeline:
    """Batches of a `StreamSource`.

    Attributes:
        options: what was asked.
    """

    def __init__(self, source: StreamSource, options: PipelineOptions) -> None:
        """Prepare.

        Raises:
            ConfigurationError: something was asked that needs samples by number.
            DataError: the number of samples is unknown.
        """
        requested = [name for name in _NEEDS_NUMBERS if getattr(options, name) not in (None, False)]
        requested += ["on_error='skip'"] * (options.on_error == "skip")
        requested += ["Padding(lengths=)"] * (getattr(options.padding, "lengths", None) is not None)
        if requested:
            raise ConfigurationError(
                f"pipeline takes {' and '.join(requested)} where samples can be taken by "
                f"number; found {source}, read from its start. Give "
                "tfrecords(..., index=True), or leave it out."
            )
        if source.num_samples is None:
            raise DataError(
                f"Asked for a pipeline from {source}, whose samples are not counted. Workers "
                "must know beforehand where an epoch ends: give the source its counts."
            )
        self.options = options
        self.source = source
        self._maker = RecordParser(source, options)

    def batches(self, topology: ReplicaTopology) -> StreamBatches:
        """The global batches for `fit`, `evaluate` and `predict`."""
        if self.options.start != (0, 0):
            raise ConfigurationError(
                f"pipeline was given start={self.options.start!r}, which is for custom "
                "training loops. Leave it out for fit, which takes initial_epoch, or use "
                "Checkpoint."
            )
        return self._shared(topology)

    def dataset(self, topology: ReplicaTopology) -> tf.data.Dataset:
        """This worker's rows of each global batch; each iteration is the next epoch."""
        batches = self._shared(topology)
        first_epoch, first_step = self.options.start
        epochs = itertools.count(first_epoch)

        def one_epoch(_: tf.Tensor) -> tf.data.Dataset:
            epoch = python_call(lambda: np.int64(next(epochs)), [], tf.int64)
            skip = tf.where(epoch == first_epoch, tf.constant(first_step, tf.int64), 0)
            begin = tf.ensure_shape(epoch, []) * batches.steps + skip
            return batches.passes(begin).take(batches.steps - skip)

        elements = tf.data.Dataset.range(1).flat_map(no_autograph(one_epoch))
        make: Make = replica_part if batches.may_be_empty else (lambda rows: rows.data)
        made = batches.made_ahead(elements, make)
        if first_step:
            return made
        return made.apply(tf.data.experimental.assert_cardinality(batches.steps))

    def _shared(self, topology: ReplicaTopology) -> StreamBatches:
        return StreamBatches(self.source, self.options, self._maker, topology)
