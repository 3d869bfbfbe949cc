"""Batches of chosen samples: read, mapped, cached, augmented, batched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from phalanx.data.batches import no_autograph
from phalanx.data.pipelines.cache import cache_key, cache_of, cached
from phalanx.data.pipelines.error_policy import BadSamplePolicy
from phalanx.data.pipelines.options import PipelineOptions
from phalanx.data.pipelines.padding import Padding, padded_batch
from phalanx.data.pipelines.transforms import (
    apply,
    apply_augmentation,
    augment_key,
    graph_function,
    map_dataset,
)
from phalanx.data.sources.protocol import IndexedSource


@dataclass(frozen=True, kw_only=True)
class SampleSelection:
    """Samples that are to make a batch, or this worker's part of one.

    Attributes:
        rows: their numbers, 1-D int64, not empty.
        places: their positions in the epoch, which no two samples share.
        seed: of the pipeline.
        epoch: from 0.
        length: of a padded batch; None without padding.
    """

    rows: tf.Tensor
    places: tf.Tensor
    seed: Any
    epoch: Any
    length: tf.Tensor | None


class Reader:
    """Makes batches of the samples that it receives.

    Attributes:
        is_sure: whether nothing can go wrong, so that `batch` makes them; else `batches` does.
        repair: what finds, and leaves out, samples that cannot be read.
    """

    def __init__(self, source: IndexedSource, options: PipelineOptions) -> None:
        """Trace the user's functions; nothing is read, unless a source must look."""
        key = cache_key(options, source)  # before the functions are called, which may change them
        self._source = source
        self._map = graph_function(options.map)
        self._augment = graph_function(options.augment)
        self._map_batches = graph_function(options.map_batches)
        self._padding: Padding | None = options.padding
        one_row = tf.data.Dataset.range(1)
        self._mapped_spec = one_row.map(no_autograph(self._mapped)).element_spec
        self._cache = cache_of(options, key, self._mapped_spec)
        mark = tf.zeros([3], tf.int64)
        self._spec = one_row.map(no_autograph(lambda row: self._sample(row, mark))).element_spec
        self._one = tf.function(no_autograph(self._sample))
        # A server of a `tf.data` service has no Python of ours: its failures are repaired here.
        self._repairs = not options.service
        self.repair = BadSamplePolicy(source, skips=options.on_error == "skip")
        steps = (options.map, options.augment, options.cache, options.padding)
        self._is_direct = source.gathers and steps == (None,) * len(steps)
        self.is_sure = self._is_direct and not source.can_fail

    def samples(self) -> tf.data.Dataset:
        """All samples in their order, mapped and not augmented."""
        rows = tf.data.Dataset.range(self._source.num_samples)
        return rows.map(no_autograph(self._read), num_parallel_calls=tf.data.AUTOTUNE)

    def batch(self, chosen: SampleSelection) -> Any:
        """The batch; traced."""
        return apply(self._map_batches, self._source.take(chosen.rows))

    def batches(self, chosen: SampleSelection) -> tf.data.Dataset:
        """The batch, as a dataset of it alone; traced."""
        marks = _marks(chosen)
        count = tf.size(chosen.rows, out_type=tf.int64)

        def together(samples: tf.data.Dataset) -> tf.data.Dataset:
            """One batch of all, or none where a sample failed."""
            if self._padding is None:
                return samples.batch(count, drop_remainder=True)
            return padded_batch(samples, count, chosen.length, self._padding.value)

        def again(rows: tf.Tensor, marks: tf.Tensor) -> tf.data.Dataset:
            return together(self.repair.samples(self._one, self._spec, rows, marks))

        if self._is_direct:
            first = tf.data.Dataset.from_tensors(chosen.rows).map(no_autograph(self._source.take))
        elif self._source.gathers and self._cache is None:
            whole = tf.data.Dataset.from_tensors((chosen.rows, marks))
            first = together(
                whole.flat_map(no_autograph(self._taken)).map(no_autograph(self._finish))
            )
        else:
            pairs = tf.data.Dataset.from_tensor_slices((chosen.rows, marks))
            first = together(pairs.map(no_autograph(self._sample)))
        if self._repairs:
            # Only where the first try gives nothing is the second asked for.
            second = tf.data.Dataset.from_tensors((chosen.rows, marks)).flat_map(
                no_autograph(again)
            )
            first = first.ignore_errors().concatenate(second).take(1)
        if self._map_batches is None:
            return first
        return map_dataset(first, lambda batch: apply(self._map_batches, batch))

    def _taken(self, rows: tf.Tensor, marks: tf.Tensor) -> tf.data.Dataset:
        """The samples as they are read, all in one operation."""
        return tf.data.Dataset.from_tensor_slices((self._source.take(rows), marks))

    def _finish(self, sample: Any, mark: tf.Tensor) -> Any:
        key = augment_key(mark[0], mark[1], mark[2])
        return apply_augmentation(self._augment, apply(self._map, sample), key)

    def _sample(self, row: tf.Tensor, mark: tf.Tensor) -> Any:
        key = augment_key(mark[0], mark[1], mark[2])
        return apply_augmentation(self._augment, self._read(row), key)

    def _read(self, row: tf.Tensor) -> Any:
        if self._cache is None:
            return self._mapped(row)
        return cached(self._cache, row, self._mapped_spec, lambda: self._mapped(row))

    def _mapped(self, row: tf.Tensor) -> Any:
        return apply(self._map, self._source.read(row))


def _marks(chosen: SampleSelection) -> tf.Tensor:
    """For each sample (seed, epoch, place)."""
    same = [
        tf.fill(tf.shape(chosen.rows), tf.cast(v, tf.int64)) for v in (chosen.seed, chosen.epoch)
    ]
    return tf.stack([*same, chosen.places], axis=1)
