"""The records that one worker reads in one pass, shuffled and in batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from phalanx.data.pipelines.caching import SampleCache
from phalanx.data.pipelines.options import PipelineOptions
from phalanx.data.sources.protocol import StreamSource
from phalanx.data.streams.division import Stretch, segments

MOST_FILES_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a worker reads.

    Attributes:
        source: the files.
        options: what was asked of the pipeline.
        stretch: which samples of a pass.
        rows: how many of them make an element; the last may hold fewer.
        stands_in: whether a further element, of one record, is to follow.
        cache: keeps samples; then each record comes as (its number, whether it was read, itself),
            and those of a file of which all are kept come empty and are not read.
    """

    source: StreamSource
    options: PipelineOptions
    stretch: Stretch
    rows: int
    stands_in: bool
    cache: SampleCache | None = None

    def one_pass(self, epoch: tf.Tensor, skip: tf.Tensor) -> tf.data.Dataset:
        """`(epoch, step, records)` of one pass from step `skip` on; traced."""
        records = self._records(epoch)
        if self.options.shuffle:
            records = _shuffled(records, self.options.shuffle_buffer, self.options.seed, epoch)
        batches = records.batch(self.rows)
        if self.stands_in:
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
        to_read = tf.where(self.cache.holds(tf.range(begin, end)), tf.constant(0, tf.int64), take)
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
