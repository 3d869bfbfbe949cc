"""Give each worker elements of its own of a dataset, for custom training loops."""

from __future__ import annotations

import tensorflow as tf

from phalanx.distributed.datasets import element_of
from phalanx.distributed.topology import topology_of


def shard(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Every `world_size()`-th element of a dataset, from the `rank()`-th on, on this worker.

    For custom training loops in which each worker takes its own batches, as with Horovod:

        for x, y in phalanx.data.shard(dataset.batch(32)):
            with tf.GradientTape() as tape:
                loss = loss_function(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_weights)
            optimizer.apply(gradients, model.trainable_weights)  # the mean over workers

    Every worker gets equally many elements, since a worker with one more would wait for the others
    forever: up to `world_size() - 1` elements at the end are left out. `fit` and
    `phalanx.distribute_step` need no such thing and leave nothing out.

    Args:
        dataset: the same on every worker, in the same order; give `shuffle` a seed, or set one.

    Returns:
        This worker's elements; with one worker, `dataset` itself.
    """
    topology = topology_of(tf.distribute.get_strategy())
    if topology.workers == 1:
        return dataset
    elements = dataset.cardinality()
    if elements >= 0:
        return dataset.take(elements - elements % topology.workers).shard(
            topology.workers, topology.rank
        )
    if elements == tf.data.INFINITE_CARDINALITY:
        return dataset.shard(topology.workers, topology.rank)

    def own(*window: tf.data.Dataset) -> tf.data.Dataset:
        parts = element_of(window, windows.element_spec)
        return tf.data.Dataset.zip(parts).skip(topology.rank).take(1)

    windows = dataset.window(topology.workers, drop_remainder=True)
    return windows.flat_map(own)
