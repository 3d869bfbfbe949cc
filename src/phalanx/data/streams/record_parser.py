"""From a batch of records to a batch of samples: parsed, mapped, kept, augmented, padded."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from phalanx.data.batches import no_autograph
from phalanx.data.pipelines.cache import cache_of, cached
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
        self._source = source
        self._options = options
        self._map = graph_function(options.map)
        self._augment = graph_function(options.augment)
        self._map_batches = graph_function(options.map_batches)
        record = source.open(tf.constant(source.files[0])).element_spec
        self._mapped_spec = _spec_of(self._mapped, record)
        self.cache = cache_of(options, source, self._mapped_spec)
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
            is_there = tf.cond(was_read, lambda: tf.constant(True), lambda: _missing(number))
            with tf.control_dependencies([is_there]):
                return self._mapped(tf.nest.map_structure(tf.identity, record))

        return cached(self.cache, number, self._mapped_spec, make)

    def _mapped(self, record: Any) -> Any:
        batch = self._source.finish(tf.nest.map_structure(lambda one: one[tf.newaxis], record))
        return apply(self._map, tf.nest.map_structure(lambda one: one[0], batch))


def _missing(number: tf.Tensor) -> tf.Tensor:
    """Asked for where a sample was kept as its file was opened, and is no longer in the cache."""

    def refuse(number: Any) -> bool:
        raise DataError(
            f"Asked for sample {int(number)} from cache=; found it removed or damaged since this "
            "pass started. Restart: a missing sample is read again."
        )

    return tf.ensure_shape(python_call(refuse, [number], tf.bool), [])


def _spec_of(function: Any, *arguments: Any) -> Any:
    traced = tf.function(no_autograph(function)).get_concrete_function(*arguments)
    return tf.nest.map_structure(
        lambda one: tf.TensorSpec(one.shape, one.dtype), traced.structured_outputs
    )
