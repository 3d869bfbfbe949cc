"""Workers take turns at each variable that a server keeps.

An update reads a variable's slots one after the other, computes, and writes them one after the
other. Were two workers at it at once, one could see the other's half: Adam's new momentum beside
the old velocity of zero, whose quotient throws a row far away, from where it needs epochs to come
back. (Keras writes m, v and the variable by operations of their own; TensorFlow's
`ResourceApplyAdam`, which does all in one, is not what `keras.optimizers.Adam` calls.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from phalanx.seam.graphs import made_from_here


@contextlib.contextmanager
def turn_at(held: Any, gradient: Any) -> Iterator[Any]:
    """In a graph: nobody else updates `held` and its slots while the operations made here run.

    The turn begins when the gradient has reached the server, and all that is done in it is done
    there, so a worker that dies keeps nobody waiting. A worker waits for one turn at a time:
    none for another's end while it has one.

    Args:
        held: a variable on a server, or its shard.
        gradient: its gradient, a tensor or `tf.IndexedSlices`.

    Yields:
        The gradient, on the server.
    """
    with tf.device(held.device):
        here = tf.nest.map_structure(tf.identity, gradient, expand_composites=True)
        mutex = tf.raw_ops.MutexV2(shared_name=f"phalanx/turn/{held.name}")
        with tf.control_dependencies(tf.nest.flatten(here, expand_composites=True)):
            lock = tf.raw_ops.MutexLock(mutex=mutex)
        made = made_from_here(lock.graph)
        with tf.control_dependencies([lock]):
            yield here
        with tf.control_dependencies(made()):
            tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
