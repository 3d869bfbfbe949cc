"""A dataset that the user distributes among workers: this process's part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


class ShardedDataset(tf.distribute.DistributedDataset):  # type: ignore[misc]
    """What `strategy.experimental_distribute_dataset` gives; elements are this process's.

    Attributes:
        dataset: this process's part.
    """

    def __init__(self, dataset: tf.data.Dataset, length: int | None = None) -> None:
        """Take this process's dataset, of so many elements if that is known better."""
        self.dataset = dataset
        self._length = int(dataset.cardinality()) if length is None else length

    @property
    def element_spec(self) -> Any:
        """Shapes and dtypes of an element."""
        return self.dataset.element_spec

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)

    def reduce(self, initial_state: Any, reduce_fn: Callable[[Any, Any], Any]) -> Any:
        """What a `for` loop over it in a `tf.function` becomes."""
        iterator: Any = iter(self)

        def body(following: Any, state: Any) -> Any:
            state = reduce_fn(state, following.get_value())
            return iterator.get_next_as_optional(), state

        _, state = tf.while_loop(
            lambda following, state: following.has_value(),
            body,
            [iterator.get_next_as_optional(), initial_state],
            parallel_iterations=1,
        )
        return state

    def cardinality(self) -> int:
        """Elements in a pass, negative where unknown or endless."""
        return self._length


def own_rows(dataset: tf.data.Dataset, rank: int, size: int) -> ShardedDataset:
    """Of every batch the rows of process `rank`; the first processes take the odd ones."""

    def cut(*batch: Any) -> Any:
        def own(tensor: tf.Tensor) -> tf.Tensor:
            rows = tf.shape(tensor)[0]
            base, odd = rows // size, rows % size
            start = rank * base + tf.minimum(rank, odd)
            return tensor[start : start + base + tf.cast(rank < odd, tf.int32)]

        return element_of(tf.nest.map_structure(own, batch), dataset.element_spec)

    return ShardedDataset(dataset.map(cut, num_parallel_calls=tf.data.AUTOTUNE))


def pad_to_longest(dataset: tf.data.Dataset, length: int, longest: int) -> ShardedDataset:
    """The dataset, of `length` batches, followed by empty ones up to `longest`.

    Processes train in step: one whose data has ended continues without samples.
    """
    if length == longest:
        return ShardedDataset(dataset, length)
    empty = tf.nest.map_structure(
        lambda spec: tf.zeros([0, *(d or 1 for d in spec.shape[1:])], spec.dtype),
        dataset.element_spec,
    )
    free = dataset.map(
        lambda *batch: tf.nest.map_structure(_any_rows, element_of(batch, dataset.element_spec))
    )
    more = tf.data.Dataset.from_tensors(empty).repeat(longest - length)
    return ShardedDataset(free.concatenate(more), longest)


def element_of(arguments: tuple[Any, ...], spec: Any) -> Any:
    """The element of a dataset that `tf.data` has passed to a function as `arguments`.

    It unpacks plain tuples, those of one part too, and no named ones.
    """
    return arguments if type(spec) is tuple else arguments[0]


def _any_rows(value: Any) -> Any:
    return tf.ensure_shape(tf.reshape(value, tf.shape(value)), [None, *value.shape[1:]])
