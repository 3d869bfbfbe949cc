"""How many elements of a dataset are ready, known without taking them.

Where a dataset's length is unknown (generators), a worker must know whether it has another
batch before it begins a step that all workers take together.
"""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf

from phalanx.data.py_function import python_call

MOST = 16
"""Elements that are made ahead."""


class Lookahead:
    """Counts what one pass over a dataset has made, from the thread that makes it."""

    def __init__(self, left_out: int = 0) -> None:
        """Count from behind the first `left_out` elements, which are taken before all others."""
        self._condition = threading.Condition()
        self._made = -left_out
        self._ended = False

    def over(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """The same elements, made ahead and counted; to be iterated once."""
        nothing = tf.data.Dataset.range(1).filter(lambda _: self._in_graph(self._end))
        end = nothing.flat_map(lambda _: dataset.take(0))
        counted = dataset.map(self._counted).concatenate(end).prefetch(MOST)
        options = tf.data.Options()
        options.experimental_warm_start = True  # else nothing is made before somebody takes
        return counted.with_options(options)

    def wait(self, taken: int, seconds: float) -> tuple[int, bool]:
        """How many elements are ready beyond the first `taken`, and whether those are all.

        Waits for the first of them, or for the end, but not forever: where making one
        fails, only taking it raises.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._made > taken or self._ended, timeout=seconds)
            return max(0, self._made - taken), self._ended

    def _counted(self, *element: Any) -> Any:
        with tf.control_dependencies([self._in_graph(self._count)]):
            same = tf.nest.map_structure(
                lambda one: None if one is None else tf.identity(one), element
            )
        return same if len(same) > 1 else same[0]

    def _in_graph(self, function: Any) -> tf.Tensor:
        done = python_call(function, [], tf.bool)
        done.set_shape([])
        return done

    def _count(self) -> bool:
        with self._condition:
            self._made += 1
            self._condition.notify_all()
        return False

    def _end(self) -> bool:
        with self._condition:
            self._ended = True
            self._condition.notify_all()
        return False  # and so no element
