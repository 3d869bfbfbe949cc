"""What is done to a sample on its way: the user's functions, called as `tf.data` calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from phalanx.data.batches import no_autograph
from phalanx.distributed.datasets import element_of


def graph_function(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """`function` as TensorFlow traces it, `if` and `for` over tensors understood."""
    return None if function is None else tf.function(function)


def no_fusion() -> tf.data.Options:
    """TensorFlow 2.21 breaks off when it fuses a map and a batch inside of another's function."""
    plain = tf.data.Options()
    plain.experimental_optimization.map_and_batch_fusion = False
    return plain


def map_dataset(dataset: tf.data.Dataset, function: Callable[[Any], Any]) -> tf.data.Dataset:
    """`function(element)` of each element, whatever its structure."""
    spec = dataset.element_spec
    return dataset.map(no_autograph(lambda *element: function(element_of(element, spec))))


def apply(function: Callable[..., Any] | None, sample: Any) -> Any:
    """`function(*sample)` of a tuple, `function(sample)` of anything else."""
    if function is None:
        return sample
    return function(*sample) if isinstance(sample, tuple) else function(sample)


def apply_augmentation(function: Callable[..., Any] | None, sample: Any, key: tf.Tensor) -> Any:
    """`function(*sample, seed=key)`."""
    if function is None:
        return sample
    return function(*(sample if isinstance(sample, tuple) else (sample,)), seed=key)


def augment_key(seed: Any, epoch: Any, place: tf.Tensor) -> tf.Tensor:
    """A seed, int64 of shape [2], for what chance does to the sample at `place` of an epoch.

    The place in the global order is the same for any number of workers, and a sample that comes
    twice in an epoch is not changed twice in the same way.
    """
    epochs = tf.stack([tf.cast(seed, tf.int64), tf.cast(epoch, tf.int64)])
    return tf.random.experimental.stateless_fold_in(epochs, place)
