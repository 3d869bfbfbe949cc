"""From a batch of records to a batch of samples: parsed, mapped, kept, augmented, padded."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.data.batches import no_autograph
from phalanx.data.pipelines.cache import cache_key, cache_of, cached
from phalanx.data.pipelines.options import PipelineOptions
from phalanx.data.pipelines.padding import padded_batch
from phalanx.data.pipelines.transforms import (
    apply,
    apply_augmentation,
    augment_key,
    graph_function,
    map_dataset,
)
from phalanx.data.py_function import python_call
from phalanx.data.sources.protocol import StreamSource
from phalanx.errors import DataError


class RecordParser:
    """Makes samples of a stream's records.

    Attributes:
        cache: what keeps them; records come with their numbers then.
        is_direct: whether `batch` makes them, in one operation; else `batches` does.
    """

    def __init__(self, source: StreamSource, options: PipelineOptions) -> None:
        """Trace the user's functions; nothing is read."""
        key = cache_key(options, source)  # before the functions are called, which may change them
        self._source = source
        self._options = options
        self._map = graph_function(options.map)
        self._augment = graph_function(options.augment)
        self._map_batches = graph_function(options.map_batches)
        self._record_spec = source.open(tf.constant(source.files[0])).element_spec
        self._mapped_spec = _spec_of(self._mapped, self._record_spec)
        self.cache = cache_of(options, key, self._mapped_spec)
        steps = (options.cache, options.map, options.augment, options.padding)
        self.is_direct = steps == (None,) * len(steps)

    def batch(self, records: Any) -> Any:
        """A batch of samples; traced."""
        return apply(self._map_batches, self._source.finish(records))

    def batches(self, records: Any, epoch: tf.Tensor, first: tf.Tensor) -> tf.data.Dataset:
        """A batch of samples, as a dataset of it alone; traced.

        Args:
            records: in a batch, as `Reading` gives them.
            epoch: the pass that they are from.
            first: the position of the first of them in it.
        """
        batch = records if self.cache is not None else self._source.finish(records)
        made = self._one_by_one(batch, epoch, first)
        if self._map_batches is None:
            return made
        return map_dataset(made, lambda samples: apply(self._map_batches, samples))

    def _one_by_one(self, batch: Any, epoch: tf.Tensor, first: tf.Tensor) -> tf.data.Dataset:
        def one(place: tf.Tensor, given: Any) -> Any:
            key = augment_key(self._options.seed, epoch, place)
            return apply_augmentation(self._augment, self._sample(given), key)

        count = tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0]
        places = first + tf.range(count)
        samples = tf.data.Dataset.from_tensor_slices((places, batch)).map(no_autograph(one))
        padding = self._options.padding
        if padding is None:
            return samples.batch(count)
        length = tf.constant(padding.to, tf.int64)
        return padded_batch(samples, count, length, padding.value)

    def _sample(self, given: Any) -> Any:
        if self.cache is None:
            return apply(self._map, given)
        number, was_read, record = given

        def make() -> Any:
            flat = tf.nest.flatten(record)
            flat = tf.cond(was_read, lambda: flat, lambda: self._read_again(number))
            return self._mapped(tf.nest.pack_sequence_as(record, flat))

        return cached(self.cache, number, self._mapped_spec, make)

    def _read_again(self, number: tf.Tensor) -> list[tf.Tensor]:
        """A record that was not read, since its sample was kept as its file was opened."""
        specs = tf.nest.flatten(self._record_spec)
        found = python_call(self._record, [number], [spec.dtype for spec in specs])
        return [tf.ensure_shape(v, spec.shape) for v, spec in zip(found, specs, strict=True)]

    def _record(self, number: Any) -> list[np.ndarray]:
        ends = np.cumsum(self._source.counts or ())
        file = int(np.searchsorted(ends, number, side="right"))
        own = int(number) - (int(ends[file - 1]) if file else 0)
        name = self._source.files[file]
        try:
            record = self._source.record(name, own)
        except (tf.errors.OpError, ValueError) as error:
            raise DataError(
                f"Asked for sample {int(number)} from cache=; found it removed or damaged since "
                f"this pass started, and {name} cannot be read: {error}. Restore the file."
            ) from error
        return [_array(one.numpy()) for one in tf.nest.flatten(record)]

    def _mapped(self, record: Any) -> Any:
        batch = self._source.finish(tf.nest.map_structure(lambda one: one[tf.newaxis], record))
        return apply(self._map, tf.nest.map_structure(lambda one: one[0], batch))


def _array(value: Any) -> np.ndarray:
    """NumPy's arrays of bytes cut zeros off their end; objects do not."""
    return np.array(value, object) if isinstance(value, bytes) else np.asarray(value)


def _spec_of(function: Any, *arguments: Any) -> Any:
    traced = tf.function(no_autograph(function)).get_concrete_function(*arguments)
    return tf.nest.map_structure(tf.type_spec_from_value, traced.structured_outputs)
