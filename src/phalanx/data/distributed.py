"""Datasets that the user distributed: TensorFlow cut them, we count what each replica got."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from phalanx.data.batches import with_free_batch_axis
from phalanx.data.lookahead import Lookahead
from phalanx.data.position import Position
from phalanx.distributed.datasets import OwnPart
from phalanx.seam.distributed import spec_of_one_replica


class DistributedBatches:
    """A `tf.distribute.DistributedDataset`; elements are its own, per replica.

    What the global batch holds is known only to the replicas together, so the step adds
    up their counts: one small collective more than for data that Phalanx shares out.
    """

    endless = False
    counted = False
    has_state = False
    num_samples: int | None = None
    batch_size: int | None = None
    fingerprint: int | None = None
    seed: int | None = None

    def __init__(self, dataset: tf.distribute.DistributedDataset) -> None:
        self._dataset = dataset
        self.ahead: Lookahead | None = None
        self.num_batches: int | None = _cardinality(dataset)
        self.batch_spec = with_free_batch_axis(spec_of_one_replica(dataset.element_spec))
        self.may_be_empty = True
        # TensorFlow's own iterators ask the other workers by themselves.
        self.ends_unknown = isinstance(dataset, OwnPart) and self.num_batches is None

    def open(self, position: int) -> Any:
        """A new pass over the dataset."""
        del position
        return self._open()

    def open_again(self, position: Position, state: Mapping[str, Any] | None) -> Any:
        """The pass that stood at `position`, read again up to there."""
        del state
        for _ in range(position.passes - (position.taken is not None) + position.unread):
            self.open_unread()
        if position.taken is None:
            return None
        iterator = self._open()
        for _ in range(position.taken):
            next(iterator)
        return iterator

    def _open(self) -> Any:
        if not self.ends_unknown:
            return iter(self._dataset)
        self.ahead = Lookahead()
        return iter(self.ahead.over(self._dataset.dataset))

    def open_unread(self) -> None:
        """Open the dataset and read nothing."""
        iter(self._dataset)

    def on_epoch_begin(self) -> None:
        """Nothing to do."""

    def on_epoch_end(self) -> None:
        """Nothing to do."""


def _cardinality(dataset: tf.distribute.DistributedDataset) -> int | None:
    cardinality = getattr(dataset, "cardinality", None)
    value = cardinality() if callable(cardinality) else cardinality
    return int(value) if value is not None and int(value) >= 0 else None
