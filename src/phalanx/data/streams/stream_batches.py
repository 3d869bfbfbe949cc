"""Global batches from files that are read from their start, each as this worker's shares."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from phalanx.data.batches import no_autograph, slice_rows, with_free_batch_axis
from phalanx.data.iterator_position import DataPosition
from phalanx.data.pipelines.cache import SampleCache
from phalanx.data.pipelines.local_rows import LocalBatch, Make, shares
from phalanx.data.pipelines.options import PipelineOptions
from phalanx.data.pipelines.transforms import map_dataset, no_fusion
from phalanx.data.sources.protocol import StreamSource
from phalanx.data.streams.file_sharding import (
    BatchPlan,
    SampleRange,
    own_rows,
    range_for_worker,
    segments,
    shards_by_file,
)
from phalanx.data.streams.record_parser import RecordParser
from phalanx.distributed.topology import ReplicaTopology, rows_of
from phalanx.errors import DataError

_log = logging.getLogger("phalanx")


class StreamBatches:
    """A stream's global batches.

    A position is (epoch, step), as everywhere: what is shuffled follows from the seed and the
    epoch. To resume in the middle of a pass its records are read up to there, but not parsed.

    Attributes:
        steps: batches in an epoch.
    """

    endless = True
    counted = True
    may_be_undivided = False
    length_unknown = False
    has_state = False

    def __init__(
        self,
        source: StreamSource,
        options: PipelineOptions,
        maker: RecordParser,
        topology: ReplicaTopology,
    ) -> None:
        self._source = source
        self._options = options
        self._maker = maker
        self._topology = topology
        self._batches = batches = BatchPlan(
            samples=source.num_samples or 0,
            size=options.global_batch_size,
            drop_remainder=options.drop_remainder,
        )
        if batches.number == 0:
            raise DataError(
                f"Asked for batches of {batches.size} samples and no smaller one; found "
                f"{batches.samples} samples in {source}. Take smaller batches."
            )
        self._by_file = shards_by_file(
            len(source.files), batches, topology, shuffle=options.shuffle
        )
        self._reading = self._local_reading()
        self.seed: int | None = options.seed
        self.steps: int = options.steps_per_epoch or batches.number
        self.num_batches: int | None = self.steps
        is_one_pass = self.steps == batches.number
        self.num_samples: int | None = batches.used if is_one_pass else None
        self.batch_size: int | None = batches.size
        self.full_batch_size: int | None = self.batch_size
        self.fingerprint: int | None = source.fingerprint
        self.order: str | None = f"shuffle={options.shuffle}, seed={options.seed}"
        self.may_be_empty: bool = batches.smallest < topology.total
        self.batch_spec: Any = with_free_batch_axis(self._shares(0).element_spec[1][0][1])
        _check_order(options, topology, by_file=self._by_file)
        if topology.workers > 1 and topology.is_chief:
            _log.info("pipeline: %s", self.division)

    @property
    def division(self) -> str:
        """Who reads what, in a sentence."""
        files, workers = len(self._source.files), self._topology.workers
        if self._by_file:
            return f"each of {workers} workers reads its own part of {files} files"
        why = "unshuffled" if not self._options.shuffle else "fewer files than workers"
        if self._options.shuffle and files >= workers:
            why = "the batches are too small to read by file"
        return (
            f"all {workers} workers read all of {files} file(s) ({why}), and each parses its own "
            "rows"
        )

    def division_at(self, position: int) -> str | None:
        """Who reads what of the pass under way at `position`; None where one begins.

        It decides the samples of each batch: in the middle of a pass nothing else continues it.
        """
        if position % self._batches.number == 0:
            return None
        if not self._by_file:
            return "all files read by each worker"
        counts = f"{self._topology.workers} workers with {self._topology.total} replicas in all"
        return f"files divided between {counts}"

    def open(self, position: int) -> Any:
        """An endless iterator: pass after pass, each in its own order."""
        return iter(self._shares(position))

    def passes(self, position: tf.Tensor) -> tf.data.Dataset:
        """`(epoch, step, records)` from a position on, pass after pass; may be traced."""
        number = self._batches.number
        first, skip = position // number, position % number

        def one_pass(epoch: tf.Tensor) -> tf.data.Dataset:
            skipped = tf.where(epoch == first, skip, 0)
            return self._reading.one_pass(epoch, skipped)

        return tf.data.Dataset.range(first, tf.int64.max).flat_map(no_autograph(one_pass))

    def made_ahead(self, elements: tf.data.Dataset, make: Make) -> tf.data.Dataset:
        """What `make` gives of each of `(epoch, step, records)`, several at a time."""
        parallel = self._options.parallel
        if self._maker.is_direct:
            made = elements.map(
                no_autograph(lambda *element: self._direct(make, *element)),
                num_parallel_calls=parallel or tf.data.AUTOTUNE,
                deterministic=True,
            )
        else:  # as in IndexedPipeline.made
            made = elements.interleave(
                no_autograph(lambda *element: self._one(make, *element)),
                cycle_length=parallel,
                num_parallel_calls=parallel or tf.data.AUTOTUNE,
                deterministic=True,
            )
        return made.prefetch(self._options.prefetch or tf.data.AUTOTUNE).with_options(no_fusion())

    def _shares(self, position: int) -> tf.data.Dataset:
        passes = self.passes(tf.constant(position, tf.int64))
        return self.made_ahead(passes, lambda rows: shares(rows, self._topology))

    def _local_reading(self) -> Reading:
        batches, by_file = self._batches, self._by_file
        whole, last = (own_rows(self._topology, n)[1] for n in (batches.size, batches.last))
        return Reading(
            source=self._source,
            options=self._options,
            stretch=range_for_worker(batches, self._topology, by_file=by_file),
            rows=whole if by_file else batches.size,
            has_stand_in=by_file and batches.last > 0 and last == 0,
            cache=self._maker.cache,
        )

    def reopen(self, position: DataPosition, state: Mapping[str, Any] | None) -> Any:
        """The same as `open`: a position is all there is."""
        del state
        return self.open(position.trained)

    def open_unread(self) -> None:
        """Nothing to do: the order of a pass follows from its number."""

    def on_epoch_begin(self) -> None:
        """Nothing to do: the order of an epoch follows from its number."""

    def on_epoch_end(self) -> None:
        """Nothing to do."""

    def _direct(self, make: Make, epoch: tf.Tensor, step: tf.Tensor, records: Any) -> Any:
        rows, _, own = self._choose(epoch, step, records)
        return make(own(data=self._maker.batch(rows)))

    def _one(self, make: Make, epoch: tf.Tensor, step: tf.Tensor, records: Any) -> tf.data.Dataset:
        rows, first, own = self._choose(epoch, step, records)
        batches = self._maker.batches(rows, epoch, first)
        return map_dataset(batches, lambda data: make(own(data=data)))

    def _choose(
        self, epoch: tf.Tensor, step: tf.Tensor, records: Any
    ) -> tuple[Any, tf.Tensor, Callable[..., LocalBatch]]:
        """The records of this process's rows of a batch, where the first of them is in the
        pass, and what becomes of their data; traced."""
        topology, batches = self._topology, self._batches
        total, base = self._total(step)
        start, _ = rows_of(topology.first, topology.total, total)
        last, more = rows_of(topology.first + topology.local - 1, topology.total, total)
        count = last + more - start
        begin = tf.where(count > 0, start - base, 0)
        is_even = batches.last == 0 and batches.size % topology.total == 0
        static = batches.size // topology.total * topology.local if is_even else None
        rows = slice_rows(records, begin, tf.maximum(count, 1), static)
        position = epoch * batches.number + step
        own = partial(LocalBatch, position=position, total=total, first=start, count=count)
        return rows, step * batches.size + start, own

    def _total(self, step: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Samples of the global batch, and which of them is the first that was read here."""
        size, last = self._batches.size, self._batches.last
        total = tf.where(step < self._batches.whole, tf.constant(size, tf.int64), last)
        return total, rows_of(self._topology.first, self._topology.total, total)[0] * self._by_file


def _check_order(options: PipelineOptions, topology: ReplicaTopology, *, by_file: bool) -> None:
    if not options.deterministic and topology.workers > 1 and not by_file:
        raise DataError(
            "Asked for deterministic=False where all workers read all records: each would take "
            "its rows of other batches. Leave it out, or write at least one file for each worker."
        )


MOST_FILES_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a worker reads.

    Attributes:
        source: the files.
        options: what was asked of the pipeline.
        stretch: which samples of a pass.
        rows: how many of them make an element; the last may hold fewer.
        has_stand_in: whether a further element, of one record, is to follow.
        cache: keeps samples; then each record comes as (its number, whether it was read, itself),
            and those of a file of which all are kept come empty and are not read.
    """

    source: StreamSource
    options: PipelineOptions
    stretch: SampleRange
    rows: int
    has_stand_in: bool
    cache: SampleCache | None = None

    def one_pass(self, epoch: tf.Tensor, skip: tf.Tensor) -> tf.data.Dataset:
        """`(epoch, step, records)` of one pass from step `skip` on; traced."""
        records = self._records(epoch)
        if self.options.shuffle:
            records = _shuffled(records, self.options.shuffle_buffer, self.options.seed, epoch)
        batches = records.batch(self.rows)
        if self.has_stand_in:
            batches = batches.concatenate(self._records(epoch).take(1).batch(1))
        numbered = batches.enumerate().skip(skip)
        return numbered.map(lambda step, batch: (epoch, step, batch))

    def _records(self, epoch: tf.Tensor) -> tf.data.Dataset:
        files = self.source.files
        order = tf.range(len(files), dtype=tf.int64)
        if self.options.shuffle:
            key = tf.stack([tf.constant(self.options.seed, tf.int64), epoch])
            last = tf.constant(len(files) - 1, tf.int64)
            order = tf.random.experimental.index_shuffle(order, key, last)
        parts = segments(files, self.source.counts or (), order, self.stretch)
        named = tf.data.Dataset.from_tensor_slices(parts)
        if not self.options.shuffle:
            return named.flat_map(self._part)
        return named.interleave(
            self._part,
            cycle_length=min(MOST_FILES_AT_ONCE, len(files)),
            num_parallel_calls=self.options.parallel or tf.data.AUTOTUNE,
            deterministic=self.options.deterministic,
        )

    def _part(
        self, file: tf.Tensor, first: tf.Tensor, skip: tf.Tensor, take: tf.Tensor
    ) -> tf.data.Dataset:
        records = self.source.open(file).skip(skip).take(take)
        if self.cache is None:
            return records
        begin, end = first + skip, first + skip + take
        numbers = tf.data.Dataset.range(begin, end)
        to_read = tf.where(
            self.cache.contains(tf.range(begin, end)), tf.constant(0, tf.int64), take
        )
        nothing = _nothing(records.element_spec)
        kept = numbers.take(take - to_read).map(lambda number: (number, False, nothing))
        read = tf.data.Dataset.zip(numbers, records).take(to_read)
        return kept.concatenate(read.map(lambda number, record: (number, True, record)))


def _nothing(spec: Any) -> Any:
    """A record of this kind that holds nothing."""
    return tf.nest.map_structure(
        lambda one: tf.zeros([size or 0 for size in one.shape], one.dtype), spec
    )


def _shuffled(
    records: tf.data.Dataset, buffer: int, seed: int, epoch: tf.Tensor
) -> tf.data.Dataset:
    """Shuffled by (seed, epoch) alone; `Dataset.shuffle` would mix the global seed in."""
    variant = tf.raw_ops.ShuffleDatasetV3(
        input_dataset=tf.data.experimental.to_variant(records),
        buffer_size=tf.constant(buffer, tf.int64),
        seed=tf.constant(seed, tf.int64),
        seed2=epoch + 1,  # both 0 would draw another order each time
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        reshuffle_each_iteration=False,
        output_types=[spec.dtype for spec in tf.nest.flatten(records.element_spec)],
        output_shapes=[spec.shape for spec in tf.nest.flatten(records.element_spec)],
    )
    return tf.data.experimental.from_variant(variant, records.element_spec)
