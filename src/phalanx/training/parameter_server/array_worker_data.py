"""Arrays that every worker holds in full, sent once; a step receives which rows it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from phalanx.data.array_batches import assert_as_before, fingerprint, is_listed, order_of
from phalanx.data.batches import with_free_batch_axis
from phalanx.data.dataset_identity import DatasetIdentity
from phalanx.data.iterator_position import DataPosition
from phalanx.data.sampler import ShuffleSampler
from phalanx.errors import DataError
from phalanx.keras_compat.data_adapters import Arrays, shuffled_rows, spec_of, take_rows


class ArraysOnWorkers:
    """In-memory samples, in the order of `phalanx.data.ArrayBatches` over global batches.

    Batch `n` is the same rows whoever trains on it, so each sample comes once in an epoch
    whatever becomes of a worker.
    """

    ends_by_worker = False

    def __init__(self, arrays: Arrays, seed: int | None) -> None:
        if not all(tf.is_tensor(leaf) for leaf in _leaves(arrays.inputs)):
            raise DataError(
                "Asked to train under parameter-server on arrays that are not dense. Pass dense "
                "arrays, a tf.data.Dataset, or a function of an input context that makes one."
            )
        self._arrays = arrays
        self._seed = seed
        self._is_listed = is_listed(arrays, seed)
        rows = shuffled_rows(arrays) if self._is_listed else None
        shuffle = False if self._is_listed else arrays.shuffle
        self._order = ShuffleSampler(arrays.num_samples, arrays.batch_size, shuffle)
        self.steps: int | None = self._order.num_batches
        self.batch_spec = with_free_batch_axis(spec_of(arrays.inputs))
        self.identity = DatasetIdentity(
            samples=arrays.num_samples,
            batch_size=arrays.batch_size,
            batches=self.steps,
            order=order_of(arrays, rows),
            fingerprint=fingerprint(arrays.inputs, arrays.num_samples),
        )

    def on_workers(self, coordinator: Any) -> Any:
        """What a step takes its batch from, on every worker."""
        listed = shuffled_rows(self._arrays) if self._is_listed else ()
        sent = (self._arrays.inputs, tf.constant(listed, tf.int64))
        made = coordinator.create_per_worker_dataset(
            lambda: tf.data.Dataset.from_tensors(sent).repeat()
        )
        return iter(made)

    def ticket(self, position: int) -> int:
        """The number of the batch, counted through all epochs."""
        return position

    def next_pass(self) -> None:
        """Nothing to do: a batch's number determines its pass."""

    def position(self, *, batch: int, trained: int) -> DataPosition:
        """The position of training, which is one number."""
        return DataPosition(
            batch=batch, trained=trained, passes=1, taken=None, learned=None, seed=self._seed
        )

    def state(self) -> None:
        """Nothing more: the batches' order follows from their numbers."""

    def restore(self, position: DataPosition, state: Mapping[str, Any] | None) -> None:
        """Take the order that was saved; before the first step."""
        del state
        assert_as_before(self._is_listed, is_listed(self._arrays, position.seed))
        self._seed = position.seed

    def unreported(self) -> list[Any]:
        """Nothing: a batch that was lost is trained again."""
        return []

    def is_news(self, worker: int, batch: int) -> bool:
        """Each step is: a batch's number was given out once."""
        return True

    def with_batch(
        self, iterator: Any, ticket: Any, worker: Any, run: Callable[[Any, Any], Any]
    ) -> Any:
        """Run a step on batch `ticket`; traced for one worker."""
        del worker
        order = self._order
        epoch, batch = ticket // order.num_batches, ticket % order.num_batches
        within = tf.range(order.total(self._seed, epoch, batch))
        rows = order.rows(self._seed, epoch, batch, within)
        inputs, listed = next(iterator)
        return run(take_rows(inputs, tf.gather(listed, rows) if self._is_listed else rows), ticket)


def _leaves(inputs: Any) -> list[Any]:
    return [leaf for leaf in keras.tree.flatten(inputs) if leaf is not None]
