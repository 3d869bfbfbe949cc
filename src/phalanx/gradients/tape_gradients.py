"""Gradients that a step of the script's own uses before an optimizer applies them.

A tape gives a replica the gradient of its own rows, and the optimizer adds replicas up. That is
early enough for what is linear in the gradient. It is too late for a step that clips the gradient
itself, takes its sign, or moves weights by it (SAM): this must see the total. Where the graph of a
step shows such a use, the step is traced again, and its tapes give totals.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import tensorflow as tf

from phalanx.gradients.axis_sizes import key_of
from phalanx.gradients.graph_walk import is_symbolic, judged

_LINEAR = ("AddN", "AddV2", "Add", "Cast", "Identity", "Neg", "Reshape", "StopGradient", "Sub")
_SCALES = ("Div", "DivNoNan", "Mul", "RealDiv", "TrueDiv")


class _UseOfGradient(Enum):
    NONE = "none"
    LINEAR = "linear"
    OTHER = "other"


class TapeGradients:
    """What the tapes of one step have given for variables.

    Attributes:
        are_totals: whether tapes give what all replicas have added up.
        need_totals: whether they ought to, as the step uses what they give before it is applied.
    """

    def __init__(self, *, are_totals: bool = False) -> None:
        self.are_totals = are_totals
        self.need_totals = False
        self._uses: dict[tuple[int, str], _UseOfGradient] = {}
        self._is_empty = True

    def record(self, gradients: Any) -> None:
        """Remember what a tape gave."""
        for one in _dense(gradients):
            self._uses[key_of(one)] = _UseOfGradient.LINEAR
            self._is_empty = False

    def take_applied(self, gradients: Sequence[Any]) -> bool:
        """Whether these gradients, which an optimizer is given, are totals already."""
        if self._is_empty:
            return False
        uses = self._uses_in(gradients)
        self.need_totals = self.need_totals or _UseOfGradient.OTHER in uses
        return self.are_totals and bool(uses) and _UseOfGradient.NONE not in uses

    def take_assigned(self, value: Any) -> None:
        """Look at what a step assigns to a trainable variable."""
        if not (self._is_empty or self.need_totals):
            self.need_totals = any(use is not _UseOfGradient.NONE for use in self._uses_in(value))

    def _uses_in(self, values: Any) -> list[_UseOfGradient]:
        return [judged(one, self._uses, _use_of) for one in _dense(values)]


def _use_of(tensor: Any, of_inputs: list[_UseOfGradient]) -> _UseOfGradient:
    operation, found = tensor.op, set(of_inputs) - {_UseOfGradient.NONE}
    if not found:
        return _UseOfGradient.NONE
    if found == {_UseOfGradient.LINEAR} and operation.type in _LINEAR:
        return _UseOfGradient.LINEAR
    if found == {_UseOfGradient.LINEAR} and operation.type in _SCALES:
        is_scaled = of_inputs[1] is _UseOfGradient.NONE or (
            operation.type == "Mul" and of_inputs[0] is _UseOfGradient.NONE
        )
        return _UseOfGradient.LINEAR if is_scaled else _UseOfGradient.OTHER
    return _UseOfGradient.OTHER


def _dense(values: Any) -> list[Any]:
    """The symbolic tensors among gradients; of a sparse one its values."""
    flat = [
        one.values if isinstance(one, tf.IndexedSlices) else one for one in tf.nest.flatten(values)
    ]
    return [one for one in flat if is_symbolic(one)]
