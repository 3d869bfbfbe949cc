"""Gradients that a step of the script's own uses before an optimizer applies them.

A tape gives a replica the gradient of its own rows, and the optimizer adds replicas up. That is
early enough for what is linear in the gradient. It is too late for a step that clips the gradient
itself, takes its sign, reports its norm, asks whether it is small, moves weights by it (SAM), keeps
it in a variable, as those do that accumulate gradients by hand, or makes a loss of it (MAML): this
must see the total. Where the graph of a step shows such a use, the step is traced again, and its
tapes give totals.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any

import tensorflow as tf

from phalanx.gradients.axis_sizes import key_of
from phalanx.gradients.graph_walk import inputs_of, is_symbolic, judged

_LINEAR = (
    "AddN", "AddV2", "Add", "Cast", "Identity", "Neg", "Placeholder", "Reshape", "StopGradient",
    "Sub",
)  # fmt: skip
"""A placeholder is what a branch takes from around it."""
_BRANCHES = ("Case", "If", "StatelessCase", "StatelessIf")
_SCALES = ("Div", "DivNoNan", "Mul", "RealDiv", "TrueDiv")


class UsesGradientsError(Exception):
    """A step uses gradients before it applies them, so its tapes must add them up."""


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
        self._is_applied = False
        self._of_optimizers: set[tuple[int, str]] = set()

    def record(self, gradients: Any) -> None:
        """Remember what a tape gave."""
        for one in _dense(gradients):
            self._uses[key_of(one)] = _UseOfGradient.LINEAR
            self._is_empty = False

    def take_applied(self, gradients: Sequence[Any], may_differ: Callable[[Any], bool]) -> bool:
        """Whether these gradients, which an optimizer is given, are totals already.

        Args:
            gradients: symbolic tensors, as the tapes gave them or computed from that.
            may_differ: whether a tensor may be another one on each replica.
        """
        if self._is_empty:
            return False
        self.need_totals = self.need_totals or _UseOfGradient.OTHER in self._uses_in(gradients)
        return self.are_totals and not any(map(may_differ, _dense(gradients)))

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Around what an optimizer does with gradients that it was given."""
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        previous, self._is_applied = self._is_applied, True
        try:
            yield
        finally:
            self._is_applied = previous
            made = graph.get_operations()[before:]
            self._of_optimizers.update((id(graph), operation.name) for operation in made)

    def take_used(self, value: Any) -> None:
        """Look at what a step assigns to a variable, or takes the gradient of."""
        if not (self._is_empty or self._is_applied or self.need_totals):
            self.need_totals = any(use is not _UseOfGradient.NONE for use in self._uses_in(value))

    def take_returned(self, values: Any) -> None:
        """Look at what a step returns, at its end, and at what its conditions ask.

        The mean over replicas is right for what is linear. Replicas must take the same branch.
        """
        if self._is_empty or self.need_totals:
            return
        self.need_totals = _UseOfGradient.OTHER in self._uses_in(values) or any(
            use is not _UseOfGradient.NONE for use in self._uses_in(self._conditions())
        )

    def _conditions(self) -> list[Any]:
        graph = tf.compat.v1.get_default_graph()
        return [
            operation.inputs[0]
            for operation in graph.get_operations()
            if operation.type in _BRANCHES
            and (id(graph), operation.name) not in self._of_optimizers
        ]

    def _uses_in(self, values: Any) -> list[_UseOfGradient]:
        return [judged(one, self._uses, _use_of, inputs_of=inputs_of) for one in _dense(values)]


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
