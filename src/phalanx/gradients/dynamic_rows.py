"""Steps that are traced with a number of rows that the graph does not know.

Where all batches have one size, the graph of a step has this replica's number of rows as a
constant: `tf.range(tf.shape(x)[0])` is one. Two kinds of steps cannot be traced so. One computes of
the rows of all replicas, where the constant would be wrong. The other has the size of the global
batch as a constant of its own, as in `tf.eye(BATCH)`, and TensorFlow refuses the shapes. Such a
step is traced again, with the shape of its batch left open. A step that needs the size as a number
of Python's (`range(x.shape[0])`) cannot be traced so, and keeps it; what it combines is then of
this replica's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from phalanx.gradients.tape_gradients import UsesGradientsError


class RowsOfTraces:
    """Whether the traces of a step know how many rows a replica has.

    Attributes:
        are_known: whether it has been decided.
        are_dynamic: they do not, whatever the shape of the batch is.
        are_wanted: a trace was to combine rows, and had their number as a constant.
    """

    def __init__(self) -> None:
        """As the batch is given, until a step needs another trace."""
        self.are_known = False
        self.are_dynamic = False
        self.are_wanted = False
        self._failures: list[Exception] | None = None

    def decide(
        self, trace: Callable[[], Any], again: Callable[[], None], *, are_static: bool
    ) -> None:
        """Trace a step for the first time, and once more where its number of rows is dynamic.

        Args:
            trace: traces it; the step runs in `run`.
            again: forgets what was traced.
            are_static: whether the batch has a static number of rows. Else nothing is decided.

        Raises:
            UsesGradientsError: from the step; nothing is decided.
            Exception: whatever the step raises in each trace.
        """
        failure = self._trace(trace, again)
        may_be_dynamic = are_static and not self.are_dynamic
        if may_be_dynamic and (self.are_wanted or failure is not None):
            self.are_dynamic = True
            again()
            if self._trace(trace, again) is None:
                failure = None
            else:  # whatever a script does with a size that is None
                self.are_dynamic = False
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
