"""Several sources as one, each with its share of every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.data.sources.protocol import IndexedSource
from phalanx.errors import ConfigurationError, DataError


class MixedSource(IndexedSource):
    """The samples of several sources, one source after the other.

    Attributes:
        weights: the share of each source in an epoch, up to a factor.
    """

    def __init__(self, sources: Sequence[IndexedSource], weights: Sequence[float]) -> None:
        """Put sources of equal samples together."""
        self._sources = list(sources)
        self._sizes = np.array([one.num_samples for one in sources], np.int64)
        self._ends = np.cumsum(self._sizes)
        self.weights = [float(weight) for weight in weights]
        self.num_samples = int(self._ends[-1])
        self.element_spec = _common_spec([one.element_spec for one in sources])
        prints = [one.fingerprint for one in sources]
        self.fingerprint = None if None in prints else hash((*prints, *self.weights)) & 0xFFFFFFFF

    def groups(self) -> list[np.ndarray]:
        """The numbers of each source's samples."""
        firsts = self._ends - self._sizes
        return [np.arange(a, b) for a, b in zip(firsts, self._ends, strict=True)]

    def read(self, row: tf.Tensor) -> Any:
        """The sample, from the source that has it."""
        ends = tf.constant(self._ends)
        number = tf.searchsorted(ends, row[None], side="right")[0]
        own = row - tf.gather(ends - self._sizes, number)
        branches = [lambda one=one: one.read(own) for one in self._sources]
        sample = tf.switch_case(number, branches)
        return tf.nest.map_structure(
            lambda value, spec: tf.ensure_shape(value, spec.shape), sample, self.element_spec
        )

    def cache_key_parts(self) -> Any:
        """Those of the sources; weights decide the order alone."""
        return [one.cache_key_parts() for one in self._sources]

    def where(self, row: int) -> str:
        """The sample's place in its source."""
        number = int(np.searchsorted(self._ends, row, side="right"))
        first = int(self._ends[number] - self._sizes[number])
        return f"{self._sources[number].where(row - first)} of source {number}"


def mixed(sources: Sequence[Any], weights: Sequence[float]) -> MixedSource:
    """See `phalanx.data.mix`; the sources are opened.

    Raises:
        ConfigurationError: the weights do not fit.
        DataError: samples of the sources differ in structure, dtype or rank.
    """
    fits = len(weights) == len(sources) > 0 and all(w >= 0 for w in weights) and sum(weights) > 0
    if not fits:
        raise ConfigurationError(
            f"mix takes a weight of at least 0 for each source; found {len(sources)} source(s) "
            f"and weights {list(weights)!r}."
        )
    if not all(isinstance(one, IndexedSource) for one in sources):
        raise ConfigurationError(
            "mix takes sources whose samples can be taken by number; found a stream of records. "
            "Mix streams with tf.data.Dataset.sample_from_datasets."
        )
    return MixedSource(sources, weights)


def _common_spec(specs: list[Any]) -> Any:
    for number, spec in enumerate(specs[1:], start=1):
        try:
            tf.nest.assert_same_structure(specs[0], spec)
            same_structure = all(
                a.dtype == b.dtype and a.shape.rank == b.shape.rank
                for a, b in zip(tf.nest.flatten(specs[0]), tf.nest.flatten(spec), strict=True)
            )
        except (TypeError, ValueError):
            same_structure = False
        if not same_structure:
            raise DataError(
                f"mix takes sources of equal samples; found {specs[0]} and, of source {number}, "
                f"{spec}. Give both the same structure and dtypes."
            )
    return tf.nest.map_structure(
        lambda *parts: tf.TensorSpec(
            [
                sizes[0] if len(set(sizes)) == 1 else None
                for sizes in zip(*(part.shape.as_list() for part in parts), strict=True)
            ],
            parts[0].dtype,
        ),
        *specs,
    )
