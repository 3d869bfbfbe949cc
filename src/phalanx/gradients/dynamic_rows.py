"""Steps that combine rows are traced with a number of rows that the graph does not know.

Where all batches have one size (`drop_remainder=True`), the graph of a step has this replica's
number of rows as a constant: `tf.range(tf.shape(x)[0])` is one. Computed of the rows of all
replicas, such a graph would be wrong. So a step that turns out to combine rows is traced again,
with the shape of its batch left open. A step that needs the size as a number of Python's
(`range(x.shape[0])`) cannot be traced so, and keeps it; what it combines is then of this replica's
rows.
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

    def decide(self, trace: Callable[[], Any], again: Callable[[], None]) -> None:
        """Trace a step whose batch has a static number of rows, and once more where it must.

        Args:
            trace: traces it to its end, so that what it makes lazily is there; it may raise
                `UsesGradientsError`.
            again: forgets what was traced.
        """
        trace()
        if self.are_wanted:
            self.are_dynamic = True
            again()
            try:
                trace()
            except UsesGradientsError:
                raise
            except Exception:  # whatever a script does with a size that is None
                self.are_dynamic = False
                again()
        self.are_known = True

    def of(self, data: Any) -> Any:
        """The rows of a replica as a step is to be given them."""
        return tf.nest.map_structure(_with_dynamic_rows, data) if self.are_dynamic else data


def _with_dynamic_rows(value: Any) -> Any:
    if not isinstance(value, tf.Tensor) or not value.shape.rank or value.shape[0] is None:
        return value
    return tf.raw_ops.PlaceholderWithDefault(input=value, shape=[None, *value.shape[1:]])
