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

    def time_together(
        self, reduce: Callable[[tuple[Any, Any]], Any], pieces: Sequence[tuple[Any, Any]]
    ) -> list[Any]:
        """`reduce` of each piece, timed as one.

        The time runs from the moment at which the last of the values is ready: what travels before
        that costs no time of its own.

        Args:
            reduce: reduces one piece.
            pieces: each with its value in the second place.
        """
        if len(pieces) == 1:
            ((name, value),) = pieces
            return [self.time(lambda ready: reduce((name, ready)), value)]
        if self._graph is not None and tf.compat.v1.get_default_graph() is not self._graph:
            self.is_complete = False
            return [reduce(piece) for piece in pieces]
        begins = [_when_ready_unordered(value) for _, value in pieces]
        totals = [reduce(piece) for piece in pieces]
        ends = [_when_ready_unordered(total) for total in totals]
        if pieces:
            lap = (tf.reduce_max(tf.stack(begins)), tf.reduce_max(tf.stack(ends)))
            self.laps.setdefault(_replica(), []).append(lap)
        return totals

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
    with tf.device("CPU:0"), tf.control_dependencies([_entry(value)]):
        return now()


def _when_ready_unordered(value: Any) -> tf.Tensor:
    """The same, without the order that TensorFlow gives to stateful operations.

    `tf.timestamp` would wait for each collective that is traced before it.
    """
    if tf.executing_eagerly():
        return _when_ready(value)
    with tf.device("CPU:0"):
        read = tf.numpy_function(_read_clock, [_entry(value)], tf.float64, stateful=False)
    read.set_shape([])
    return read


def _read_clock(entry: Any) -> np.float64:
    del entry
    return np.float64(time.time())


def _entry(value: Any) -> tf.Tensor:
    first = value.values if isinstance(value, tf.IndexedSlices) else value
    with tf.device("CPU:0"):
        return tf.identity(tf.reshape(first, [-1])[:1])


def _replica() -> int:
    context = tf.distribute.get_replica_context()
    return int(tf.get_static_value(context.replica_id_in_sync_group))


def timed_together(
    reduce: Callable[[tuple[Any, Any]], Any], pieces: Sequence[tuple[Any, Any]]
) -> list[Any]:
    """`reduce` of each piece, timed as one by the step's stopwatch where it has one."""
    stopwatch = current_step().stopwatch
    if stopwatch is None:
        return [reduce(piece) for piece in pieces]
    return stopwatch.time_together(reduce, pieces)


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
