"""A pipeline's global batches as `fit` takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from phalanx.data.batches import with_free_batch_axis
from phalanx.data.iterator_position import DataPosition
from phalanx.data.pipelines.local_rows import LocalBatch, shares
from phalanx.data.sampler import rows_in
from phalanx.distributed.topology import ReplicaTopology

if TYPE_CHECKING:
    from phalanx.data.pipelines.indexed import IndexedPipeline


class PipelineBatches:
    """`(total, parts)` of each global batch, forever; a position is all there is to know."""

    endless = True
    counted = True
    length_unknown = False
    has_state = False

    def __init__(self, pipeline: IndexedPipeline, place: ReplicaTopology) -> None:
        """Prepare; nothing is read yet."""
        order, options = pipeline.order, pipeline.options
        self._pipeline = pipeline
        self._place = place
        self.seed: int | None = options.seed
        self.num_batches: int | None = pipeline.num_batches
        is_one_pass = pipeline.num_batches == order.num_batches
        self.num_samples = order.num_samples if is_one_pass else None
        self.batch_size = order.batch_size
        self.full_batch_size: int | None = self.batch_size
        self.may_be_empty = order.smallest < place.total
        self.fingerprint = pipeline.fingerprint
        self.order: str | None = f"shuffle={options.shuffle}, seed={options.seed}"
        self.batch_spec = with_free_batch_axis(self._shares(0).element_spec[1][0][1])

    def open(self, position: int) -> Any:
        """An endless iterator: pass after pass, each in its own order."""
        return iter(self._shares(position))

    def reopen(self, position: DataPosition, state: Mapping[str, Any] | None) -> Any:
        """The same as `open`: a position is all there is."""
        del state
        return self.open(position.trained)

    def rows_at(self, position: int) -> Any:
        """The numbers of the samples in a global batch."""
        return rows_in(self._pipeline.order, self.seed, position)

    def where(self, row: int) -> str:
        """A sample's place, in words."""
        return self._pipeline.source.where(row)

    def open_unread(self) -> None:
        """Nothing to do: the order of a pass follows from its number."""

    def on_epoch_begin(self) -> None:
        """Nothing to do: the order of an epoch follows from its number."""

    def on_epoch_end(self) -> None:
        """Nothing to do."""

    def _shares(self, position: int) -> tf.data.Dataset:
        positions = tf.data.Dataset.range(position, tf.int64.max)
        return self._pipeline.prefetched(positions, self._place, self._share)

    def _share(self, rows: LocalBatch) -> Any:
        return shares(rows, self._place)
