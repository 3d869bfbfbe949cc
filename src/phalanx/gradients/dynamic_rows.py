"""Steps are traced with a number of rows that the graph does not know.

Where all batches have one size, the graph of a step could have this replica's number of rows as a
constant: `tf.range(tf.shape(x)[0])` would be one. That is wrong for what is computed of the rows of
all replicas, and does not fit the size of the global batch where a step has it as a constant, as in
`tf.eye(BATCH)`. So the shape of a step's batch is left open. A step that needs the size as a number
of Python's (`range(x.shape[0])`) cannot be traced so. It is given this replica's number of rows,
and what it combines is then of these rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from phalanx.gradients.tape_gradients import UsesGradientsError

_LEFT_HALF_BUILT = "has already been configured"
"""What a `keras.Sequential` says if it failed while it was built before: not what is wrong."""


class RowsOfTraces:
    """Whether the traces of a step know how many rows a replica has.

    Attributes:
        are_dynamic: they do not, whatever the shape of the batch is.
        are_known: whether a batch of static shape has been traced.
    """

    def __init__(self, *, are_dynamic: bool) -> None:
        """Traces that do not know it, until one fails, or that know what the batch's shape says."""
        self.are_dynamic = are_dynamic
        self.are_known = not are_dynamic
        self._failures: list[Exception] | None = None

    def decide(
        self, trace: Callable[[], Any], again: Callable[[], None], *, are_static: bool
    ) -> None:
        """Trace a step for the first time, and once more where it needs its number of rows.

        Args:
            trace: traces it; the step runs in `run`.
            again: forgets what was traced.
            are_static: whether the shape of the batch has the number of rows.

        Raises:
            UsesGradientsError: from the step; nothing is decided.
            Exception: whatever the step raises in the last trace; in the first where a model cannot
                be built twice.
        """
        failure = self._trace(trace, again)
        if failure is not None and are_static and self.are_dynamic:
            self.are_dynamic = False
            with_number = self._trace(trace, again)
            if with_number is None or _LEFT_HALF_BUILT not in str(with_number):
                failure = with_number
        self.are_known |= are_static
        if failure is not None:
            raise failure

    def _trace(self, trace: Callable[[], Any], again: Callable[[], None]) -> Exception | None:
        """What the step raised, if anything."""
        failures = self._failures = []
        try:
            trace()
        finally:
            self._failures = None
        if not failures:
            return None
        again()
        if isinstance(failures[0], UsesGradientsError):
            raise failures[0]
        return failures[0]

    def run(self, step: Callable[[], Any]) -> Any:
        """What `step` returns; nothing where it raises in a first trace, which goes to its end.

        Only then do variables that are made in it have their values.
        """
        try:
            return step()
        except Exception as error:
            if self._failures is None:
                raise
            self._failures.append(error)
            return ()

    def of(self, data: Any) -> Any:
        """The rows of a replica as a step is to be given them."""
        return tf.nest.map_structure(_with_dynamic_rows, data) if self.are_dynamic else data


def _with_dynamic_rows(value: Any) -> Any:
    if not isinstance(value, tf.Tensor) or not value.shape.rank or value.shape[0] is None:
        return value
    return tf.raw_ops.PlaceholderWithDefault(input=value, shape=[None, *value.shape[1:]])
