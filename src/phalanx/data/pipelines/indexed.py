"""A pipeline over an indexed source, and its global batches."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.data.batches import no_autograph, with_free_batch_axis
from phalanx.data.grouped_sampler import BucketedOrder, WeightedMixSampler
from phalanx.data.iterator_position import DataPosition
from phalanx.data.pipelines.batch_reader import Reader, SampleSelection
from phalanx.data.pipelines.local_rows import LocalBatch, Make, replica_part, shares
from phalanx.data.pipelines.options import PipelineOptions
from phalanx.data.pipelines.padding import PaddedLength, measured
from phalanx.data.pipelines.transforms import map_dataset, no_fusion
from phalanx.data.py_function import python_call
from phalanx.data.sampler import Sampler, ShuffleSampler, rows_in
from phalanx.data.sources.mixture import MixedSource
from phalanx.data.sources.protocol import IndexedSource
from phalanx.distributed.topology import ReplicaTopology, rows_of
from phalanx.errors import ConfigurationError, DataError


class IndexedPipeline:
    """Batches of an `IndexedSource` in an order that any number of workers shares.

    Attributes:
        options: what was asked.
        order: the sample at each position.
        num_batches: in an epoch: `steps_per_epoch`, or one pass over the source.
    """

    def __init__(self, source: IndexedSource, options: PipelineOptions) -> None:
        """Prepare; samples are read only for lengths that a function computes."""
        if source.num_samples == 0:
            raise DataError("Asked for a pipeline from a source with 0 samples. Give at least one.")
        self.options = options
        self.source = source
        self._reader = Reader(source, options)
        self._padded = self._padded_length()
        self.order: Sampler = order_of(source, options, self._padded)
        if self.order.num_batches == 0:
            raise DataError(
                f"Asked for global batches of {options.global_batch_size} with drop_remainder; "
                f"found {source.num_samples} sample(s), which make none. Take smaller batches."
            )
        self.num_batches = options.steps_per_epoch or self.order.num_batches

    @property
    def skipped(self) -> dict[int, str]:
        """By number, why a sample was left out on this worker."""
        return self._reader.repair.skipped

    @property
    def fingerprint(self) -> int | None:
        """Equal on workers that see the same data in the same order."""
        own = self.source.fingerprint
        return None if own is None else zlib.crc32(repr((own, self.options.seed)).encode())

    def batches(self, topology: ReplicaTopology) -> PipelineBatches:
        """The global batches for `fit`, `evaluate` and `predict`."""
        self._assert_enough_for(topology)
        if self.options.start != (0, 0):
            raise ConfigurationError(
                f"pipeline was given start={self.options.start!r}, which is for custom "
                "training loops. Leave it out for fit, which takes initial_epoch, or use "
                "Checkpoint."
            )
        return PipelineBatches(self, topology)

    def dataset(self, topology: ReplicaTopology) -> tf.data.Dataset:
        """This worker's rows of each global batch; each iteration is the next epoch."""
        self._assert_enough_for(topology)
        first_epoch, first_step = self.options.start
        epochs = itertools.count(first_epoch)

        def one_pass(_: tf.Tensor) -> tf.data.Dataset:
            epoch = python_call(lambda: np.int64(next(epochs)), [], tf.int64)
            skipped = tf.where(epoch == first_epoch, tf.constant(first_step, tf.int64), 0)
            begin = epoch * self.num_batches
            return tf.data.Dataset.range(begin + skipped, begin + self.num_batches)

        positions = tf.data.Dataset.range(1).flat_map(no_autograph(one_pass))
        is_full = self.order.smallest >= topology.total
        make: Make = (lambda rows: rows.data) if is_full else replica_part
        made = self.prefetched(positions, topology, make)
        if first_step:
            return made
        return made.apply(tf.data.experimental.assert_cardinality(self.num_batches))

    def prefetched(
        self, positions: tf.data.Dataset, topology: ReplicaTopology, make: Make
    ) -> tf.data.Dataset:
        """What `make` gives of each position, in order, made ahead, several at a time."""
        made = self.made(positions, topology, make)
        return made.prefetch(self.options.prefetch or tf.data.AUTOTUNE).with_options(no_fusion())

    def made(
        self,
        positions: tf.data.Dataset,
        topology: ReplicaTopology,
        make: Make,
        *,
        deterministic: bool = True,
    ) -> tf.data.Dataset:
        """What `make` gives of each position, several at a time."""
        parallel = self.options.parallel
        if self._reader.is_sure:
            return positions.map(
                no_autograph(lambda position: self.element(position, topology, make)),
                num_parallel_calls=parallel or tf.data.AUTOTUNE,
                deterministic=deterministic,
            )
        # Each batch is a dataset of one. Taken as an element of a map's function instead, its
        # functions would be prepared again for every batch.
        return positions.interleave(
            no_autograph(lambda position: self._one(position, topology, make)),
            cycle_length=parallel,
            num_parallel_calls=parallel or tf.data.AUTOTUNE,
            deterministic=deterministic,
        )

    def element(self, position: tf.Tensor, topology: ReplicaTopology, make: Make) -> Any:
        """What `make` gives of one position; traced."""
        if not self._reader.is_sure:
            return self._one(position, topology, make).get_single_element()
        chosen, own = self._choose(position, topology)
        return make(own(data=self._reader.batch(chosen)))

    def _one(self, position: tf.Tensor, topology: ReplicaTopology, make: Make) -> tf.data.Dataset:
        chosen, own = self._choose(position, topology)
        return map_dataset(self._reader.batches(chosen), lambda data: make(own(data=data)))

    def _choose(
        self, position: tf.Tensor, topology: ReplicaTopology
    ) -> tuple[SampleSelection, Callable[..., LocalBatch]]:
        """Which samples are read here, and what becomes of their data; traced."""
        order, seed = self.order, self.options.seed
        epoch, batch = position // order.num_batches, position % order.num_batches
        total = order.total(seed, epoch, batch)
        first, _ = rows_of(topology.first, topology.total, total)
        last, more = rows_of(topology.first + topology.local - 1, topology.total, total)
        count = last + more - first
        first = tf.where(count > 0, first, 0)
        within = first + tf.range(tf.maximum(count, 1))
        chosen = SampleSelection(
            rows=order.rows(seed, epoch, batch, within),
            places=batch * self.options.global_batch_size + within,
            seed=seed,
            epoch=epoch,
            length=self._length(seed, epoch, batch, total),
        )
        return chosen, partial(LocalBatch, position=position, total=total, first=first, count=count)

    def _length(self, seed: Any, epoch: Any, batch: Any, total: Any) -> tf.Tensor | None:
        if self._padded is None:
            return None
        return self._padded.of(self.order.rows(seed, epoch, batch, tf.range(total)))

    def _padded_length(self) -> PaddedLength | None:
        padding = self.options.padding
        if padding is None:
            return None
        if padding.lengths is None:
            return PaddedLength(padding, None)
        count = self.source.num_samples
        return PaddedLength(padding, measured(padding.lengths, self._reader.samples(), count))

    def _assert_enough_for(self, topology: ReplicaTopology) -> None:
        if self.source.num_samples < topology.workers:
            raise DataError(
                f"Asked to share {self.source.num_samples} sample(s) between {topology.workers} "
                "workers. Start fewer workers."
            )


def order_of(
    source: IndexedSource, options: PipelineOptions, padded: PaddedLength | None
) -> Sampler:
    """The order of a pipeline's samples.

    Raises:
        ConfigurationError: two of the options contradict each other.
        DataError: the labels do not fit the samples.
    """
    size, dropped = options.global_batch_size, options.drop_remainder
    buckets = padded is not None and options.padding.buckets is not None
    mixed = source if isinstance(source, MixedSource) else None
    requested = [
        name
        for name, requested in (
            ("mix(...)", mixed is not None),
            ("balance=", options.balance is not None),
            ("buckets=", buckets),
        )
        if requested
    ]
    if len(requested) > 1:
        raise ConfigurationError(
            f"pipeline takes one of mix(...), balance= and buckets=; found "
            f"{' and '.join(requested)}. "
            "Each decides alone which samples come together."
        )
    if mixed is not None or options.balance is not None:
        if not options.shuffle:
            raise ConfigurationError(
                f"pipeline takes {requested[0]} with shuffle=True alone; found shuffle=False. "
                "What is "
                "drawn from each group is drawn at random."
            )
        groups = mixed.groups() if mixed is not None else _classes(source, options)
        weights = mixed.weights if mixed is not None else [1.0] * len(groups)
        return WeightedMixSampler(groups, weights, size, drop_remainder=dropped)
    if buckets and padded is not None:
        shuffle = bool(options.shuffle)
        return BucketedOrder(padded.buckets(), size, shuffle=shuffle, drop_remainder=dropped)
    return ShuffleSampler(source.num_samples, size, options.shuffle, drop_remainder=dropped)


def _classes(source: IndexedSource, options: PipelineOptions) -> list[np.ndarray]:
    labels = source.labels if options.balance is True else options.balance
    if labels is None:
        raise DataError(
            "Asked for balance=True; found a source that does not know its classes. Give one "
            "class for each sample: balance=labels."
        )
    found = np.asarray(labels)
    if found.shape != (source.num_samples,):
        raise DataError(
            f"Asked for balance= over {source.num_samples} samples; found labels of shape "
            f"{found.shape}. Give one class for each sample."
        )
    return [np.flatnonzero(found == one) for one in np.unique(found)]


class PipelineBatches:
    """`(total, parts)` of each global batch, without end; its only state is a position."""

    endless = True
    counted = True
    may_be_undivided = False
    length_unknown = False
    has_state = False

    def __init__(self, pipeline: IndexedPipeline, topology: ReplicaTopology) -> None:
        """Prepare; nothing is read yet."""
        order, options = pipeline.order, pipeline.options
        self._pipeline = pipeline
        self._topology = topology
        self.seed: int | None = options.seed
        self.num_batches: int | None = pipeline.num_batches
        is_one_pass = pipeline.num_batches == order.num_batches
        self.num_samples = order.num_samples if is_one_pass else None
        self.batch_size = order.batch_size
        self.full_batch_size: int | None = self.batch_size
        self.may_be_empty = order.smallest < topology.total
        self.fingerprint = pipeline.fingerprint
        self.order: str | None = f"shuffle={options.shuffle}, seed={options.seed}"
        self.batch_spec = with_free_batch_axis(self._shares(0).element_spec[1][0][1])

    def open(self, position: int) -> Any:
        """An endless iterator over passes, each in its own order."""
        return iter(self._shares(position))

    def reopen(self, position: DataPosition, state: Mapping[str, Any] | None) -> Any:
        """The same as `open`: there is no other state."""
        del state
        return self.open(position.trained)

    def rows_at(self, position: int) -> Any:
        """The numbers of the samples in a global batch."""
        return rows_in(self._pipeline.order, self.seed, position)

    def where(self, row: int) -> str:
        """The location of a sample, as text."""
        return self._pipeline.source.where(row)

    def open_unread(self) -> None:
        """Nothing to do: the order of a pass follows from its number."""

    def on_epoch_begin(self) -> None:
        """Nothing to do: the order of an epoch follows from its number."""

    def on_epoch_end(self) -> None:
        """Nothing to do."""

    def _shares(self, position: int) -> tf.data.Dataset:
        positions = tf.data.Dataset.range(position, tf.int64.max)
        return self._pipeline.prefetched(positions, self._topology, self._share)

    def _share(self, rows: LocalBatch) -> Any:
        return shares(rows, self._topology)
