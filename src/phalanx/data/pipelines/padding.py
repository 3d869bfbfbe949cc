"""Batches of sequences that differ in length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.errors import ConfigurationError, DataError


@dataclass(frozen=True, kw_only=True)
class Padding:
    """How samples whose first axis differs in length come into one batch.

    Attributes:
        to: the length of every batch, in steps of the first axis. Where None, each batch is as
            long as its longest sample, over all workers, for which `lengths` must be known.
        lengths: one whole number a sample, or a function of the sample that gives it, which is
            asked once of every sample before training.
        buckets: upper lengths, growing. Each batch holds samples of one bucket and is padded to
            its bucket's upper length; samples longer than the last make a bucket of their own.
        value: what is put behind a sample, in numbers.

    Raises:
        ConfigurationError: neither `to` nor `lengths` is given, or the buckets do not grow.
    """

    to: int | None = None
    lengths: Any = None
    buckets: Sequence[int] | None = None
    value: float = 0

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if (self.to is None) == (self.lengths is None):
            raise ConfigurationError(
                f"Padding takes to= or lengths=; found to={self.to!r} and "
                f"lengths={'None' if self.lengths is None else 'given'}. Give one of them."
            )
        if self.buckets is not None:
            growing = list(self.buckets) == sorted(set(self.buckets)) and len(self.buckets) > 0
            if self.lengths is None or not growing:
                raise ConfigurationError(
                    "Padding takes buckets: growing upper lengths, next to lengths=; found "
                    f"{self.buckets!r}."
                )


def measured(lengths: Any, samples: tf.data.Dataset, count: int) -> np.ndarray:
    """The length of every sample, int64.

    Args:
        lengths: numbers, or a function of a sample.
        samples: all samples in their order.
        count: how many there are.

    Raises:
        DataError: there is not one number for each sample.
    """
    if callable(lengths):
        ask = samples.map(lengths, num_parallel_calls=tf.data.AUTOTUNE).batch(1024)
        lengths = np.concatenate([part.numpy() for part in ask])
    found = np.asarray(lengths)
    if found.shape != (count,) or not np.issubdtype(found.dtype, np.integer):
        raise DataError(
            f"Padding needs one whole number for each of {count} samples as lengths; found "
            f"{found.dtype} of shape {found.shape}."
        )
    return found.astype(np.int64)


class PaddedLength:
    """How long each batch is made."""

    def __init__(self, padding: Padding, lengths: np.ndarray | None) -> None:
        """Know the rule, and the lengths where it needs them."""
        self._to = padding.to
        self._lengths = lengths
        self._bounds: np.ndarray | None = None
        if padding.buckets is not None and lengths is not None:
            longest = max(int(lengths.max()), int(padding.buckets[-1]))
            self._bounds = np.array([*padding.buckets, longest], np.int64)

    def buckets(self) -> list[np.ndarray]:
        """The samples of each bucket, none of them empty."""
        assert self._bounds is not None and self._lengths is not None
        number = np.searchsorted(self._bounds[:-1], self._lengths, side="left")
        groups = [np.flatnonzero(number == k) for k in range(len(self._bounds))]
        return [group for group in groups if len(group)]

    def of(self, rows: tf.Tensor) -> tf.Tensor:
        """The length of a batch that holds `rows`, over all workers; scalar int64."""
        if self._to is not None:
            return tf.constant(self._to, tf.int64)
        assert self._lengths is not None
        longest = tf.reduce_max(tf.gather(self._lengths, rows))
        if self._bounds is None:
            return longest
        bounds = tf.constant(self._bounds)
        return bounds[tf.searchsorted(bounds, longest[None], out_type=tf.int64)[0]]


def padded_batch(
    samples: tf.data.Dataset, count: tf.Tensor, length: tf.Tensor, value: float
) -> tf.data.Dataset:
    """All `count` samples in one batch; first axes of unknown length become `length`."""
    spec = samples.element_spec
    shapes = tf.nest.map_structure(lambda one: padded_shape(one, length), spec)
    values = tf.nest.map_structure(lambda one: _padding_value(one.dtype, value), spec)
    return samples.padded_batch(count, shapes, values, drop_remainder=True)


def padded_shape(spec: Any, length: Any) -> Any:
    """The shape of one sample in a padded batch."""
    if not spec.shape.rank or spec.shape[0] is not None:
        return spec.shape
    rest = [-1 if size is None else size for size in spec.shape[1:]]
    return tf.stack([length, *(tf.constant(size, tf.int64) for size in rest)])


def _padding_value(dtype: tf.DType, value: float) -> tf.Tensor:
    return tf.constant("", tf.string) if dtype == tf.string else tf.cast(value, dtype)
