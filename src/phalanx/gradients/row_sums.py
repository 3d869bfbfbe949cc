"""Which scalars of a step are sums over the rows of its batch.

A worker's gradient of a mean over its rows is weighed by its share before it is added up. A sum
over rows carries that weight already. Which of the two a loss is, its graph says:
`tf.reduce_sum(losses)` and `tf.reduce_sum(losses) / 32` are sums, `tf.reduce_mean(losses)` and
`tf.reduce_sum(losses) / tf.shape(x)[0]` are means. So is what does not depend on the batch, such as
a sum over a kernel's squares. What a function within the step computes is taken for a mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

_PASSES = ("Identity", "Cast", "Neg", "Reshape", "Squeeze", "StopGradient", "Sum", "Mean")
"""Operations that leave a scalar a sum over rows."""
_ADDS = ("AddV2", "Add", "AddN", "Sub")
_MULTIPLIES = ("Mul", "RealDiv", "Div", "DivNoNan", "TrueDiv")


Name = tuple[int, str]
"""A tensor's graph and name: TensorFlow makes a new object each time a graph is asked for it."""

Term = tuple[Any, float]
"""A scalar tensor, and 1 or -1."""


class RowSums:
    """Finds sums over rows in the graph of one step."""

    def __init__(self, data: Any, counts: Sequence[Any] = ()) -> None:
        """Look at the step on this part of a batch.

        Args:
            data: tensors with the rows along axis 0.
            counts: tensors that know how many rows there are, scalars.
        """
        rows = [t for t in tf.nest.flatten(data) if _is_symbolic(t)]
        self._sizes = {t.shape[0] for t in rows if t.shape.rank}
        self._known = {_name(t) for t in [*rows, *counts] if _is_symbolic(t)}
        self._depends: dict[Name, bool] = {}
        self._means: set[Name] = set()

    def take_for_mean(self, tensor: Any) -> None:
        """Remember that `tensor` is a mean, whatever its graph says."""
        if _is_symbolic(tensor):
            self._means.add(_name(tensor))

    def terms(self, scalar: Any) -> list[Term]:
        """The terms of `scalar` that are sums over rows, factors included, each with its sign.

        Empty where none is, where nobody can see it, or where `scalar` is not a symbolic scalar.
        """
        if not _is_symbolic(scalar) or scalar.shape.rank != 0:
            return []
        return list(self._terms(scalar))

    def depends_on_batch(self, tensor: Any) -> bool:
        """Whether a tensor is computed from the batch, or nobody can see."""
        return not _is_symbolic(tensor) or self._knows_batch(tensor)

    def _terms(self, tensor: Any) -> Iterator[Term]:
        if _name(tensor) in self._means:
            return
        if added := _added(tensor.op):
            for place, one in enumerate(added):
                minus = tensor.op.type == "Sub" and place == 1
                for term, sign in self._terms(one):
                    yield term, -sign if minus else sign
        elif self._is_row_sum(tensor):
            yield tensor, 1.0

    def _is_row_sum(self, tensor: Any) -> bool:
        """Whether a scalar is one sum over rows, times factors that do not know the rows."""
        if _name(tensor) in self._means:
            return False
        operation = tensor.op
        inputs = list(operation.inputs)
        if operation.type in _PASSES and inputs[0].shape.rank == 0:
            return self._is_row_sum(inputs[0])
        if operation.type in _MULTIPLIES:
            first, second = inputs[:2]
            if operation.type == "Mul" and self._is_row_sum(second):
                first, second = second, first
            return self._is_row_sum(first) and not self._knows_rows(second)
        if added := _added(operation):
            # One factor over several terms: all of them, or it is nobody's sum.
            return all(self._is_row_sum(one) for one in added)
        return operation.type == "Sum" and self._sums_rows(operation)

    def _sums_rows(self, operation: Any) -> bool:
        values, axes = operation.inputs
        if not self._knows_batch(values):
            return False
        reduced = tf.get_static_value(axes)
        if values.shape.rank == 0 or reduced is None:
            return False
        if 0 not in {int(axis) % values.shape.rank for axis in reduced.reshape(-1)}:
            return False
        return self._has_rows(values)

    def _has_rows(self, values: Any) -> bool:
        """Whether axis 0 of a tensor is the batch's, as far as its size can say."""
        rows = values.shape[0]
        return rows is None or any(size and rows % size == 0 for size in self._sizes)

    def _knows_rows(self, factor: Any) -> bool:
        """Whether a factor is computed from the batch, or is the number of its rows."""
        constant = tf.get_static_value(factor)
        if constant is None or constant.size != 1:
            return self._knows_batch(factor)
        static = self._sizes - {None}
        return any(abs(float(constant)) in (size, 1 / size) for size in static if size)

    def _knows_batch(self, tensor: Any) -> bool:
        """Whether a tensor is computed from the batch, its shape included."""
        own = _name(tensor)
        if own not in self._depends:
            self._depends[own] = self._is_reached_from(tensor)
        return self._depends[own]

    def _is_reached_from(self, tensor: Any) -> bool:
        stack, seen = [tensor], set()
        while stack:
            one = stack.pop()
            name = _name(one)
            if name in self._known or self._depends.get(name):
                return True
            if name not in seen and name not in self._depends:
                seen.add(name)
                stack.extend(one.op.inputs)
        return False


def _added(operation: Any) -> list[Any]:
    """The scalars that an operation adds up; none where it does something else."""
    inputs = list(operation.inputs)
    if operation.type == "Sum" and inputs[0].op.type == "Pack":
        inputs = list(inputs[0].op.inputs)  # Keras adds up losses so
    elif operation.type not in _ADDS:
        return []
    return inputs if all(one.shape.rank == 0 for one in inputs) else []


def _name(tensor: Any) -> Name:
    return id(tensor.graph), tensor.name


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and tf.is_symbolic_tensor(value)
