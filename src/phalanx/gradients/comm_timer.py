"""How long a replica waits for its reductions, measured inside the step's graph.

A timed step is traced with a `Stopwatch` in its `StepContext`; the graph of another step has
none of this. A reduction's time runs from the moment at which this
replica's own values are ready to the moment at which the total is there. So it holds the
transfer and the wait for replicas that come later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.gradients.step_context import current_step


class Stopwatch:
    """Collects the begins and ends of a step's reductions.

    Attributes:
        laps: by replica, the (begin, end) of each reduction, in seconds.
        is_complete: whether no reduction was out of reach.
    """

    def __init__(self) -> None:
        self.laps: dict[int, list[tuple[tf.Tensor, tf.Tensor]]] = {}
        self.is_complete = True
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def time(self, reduce: Callable[[Any], Any], value: Any) -> Any:
        """`reduce(value)`, timed."""
        if self._graph is not None and tf.compat.v1.get_default_graph() is not self._graph:
            self.is_complete = False  # in a branch or a loop, whose tensors do not get out
            return reduce(value)
        begin = _when_ready(value)
        with tf.control_dependencies([begin]):
            value = tf.nest.map_structure(tf.identity, value, expand_composites=True)
        total = reduce(value)
        self.laps.setdefault(_replica(), []).append((begin, _when_ready(total)))
        return total

    def tensor(self) -> tf.Tensor:
        """All laps, float64 of shape [replicas of this process, laps, 2]."""
        if not self.laps:
            return tf.zeros([1, 0, 2], tf.float64)
        return tf.stack([tf.stack([tf.stack(lap) for lap in laps]) for laps in self.laps.values()])


def seconds_in(laps: Sequence[Sequence[float]]) -> float:
    """The seconds that (begin, end) laps cover together; where they overlap they count once."""
    total, reached = 0.0, -np.inf
    for begin, end in sorted((float(b), float(e)) for b, e in laps):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _when_ready(value: Any) -> tf.Tensor:
    """The time at which `value` is computed, by this machine's clock.

    One entry of it goes to the CPU first. On a GPU that takes until its work is done, while
    a plain control dependency would only wait until the work is queued.
    """
    first = value.values if isinstance(value, tf.IndexedSlices) else value
    with tf.device("CPU:0"):
        entry = tf.identity(tf.reshape(first, [-1])[:1])
        with tf.control_dependencies([entry]):
            return now()


def _replica() -> int:
    context = tf.distribute.get_replica_context()
    return int(tf.get_static_value(context.replica_id_in_sync_group))


def timed(reduce: Callable[[Any], Any], value: Any) -> Any:
    """`reduce(value)`, timed by the step's stopwatch where it has one."""
    stopwatch = current_step().stopwatch
    return reduce(value) if stopwatch is None else stopwatch.time(reduce, value)


def now() -> tf.Tensor:
    """Seconds since 1970 by this machine's clock, scalar float64; read in each run of a graph.

    After `tf.config.experimental.enable_op_determinism`, TensorFlow refuses `tf.timestamp`.
    """
    if _is_refused():
        read = tf.numpy_function(time.time, [], tf.float64, stateful=True)
        read.set_shape([])
        return read
    return tf.timestamp()


def _is_refused() -> bool:
    try:
        with tf.init_scope(), tf.device("CPU:0"):
            tf.timestamp()
    except tf.errors.FailedPreconditionError:
        return True
    return False
