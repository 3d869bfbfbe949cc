"""Which scalars of a step are sums over the rows of its batch, or means of counted entries.

A worker's gradient of a mean over its rows is weighed by its share before it is added up. A sum
over rows carries that weight already. Which of the two a loss is, its graph says:
`tf.reduce_sum(losses)` and `tf.reduce_sum(losses) / 32` are sums, `tf.reduce_mean(losses)` and
`tf.reduce_sum(losses) / tf.shape(x)[0]` are means. So is what does not depend on the batch, such as
a sum over a kernel's squares. What a function within the step computes is taken for a mean.

`tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)` is neither: workers count unlike numbers of
entries, so the sum is to be divided by what all workers count. So is a mean of the rows that a mask
selects, `tf.reduce_mean(tf.boolean_mask(losses, mask))`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from phalanx.gradients.axis_sizes import AxisSizes, key_of
from phalanx.gradients.graph_walk import inputs_of, is_symbolic
from phalanx.gradients.origin_of_rows import is_selection, origin_of_rows

_PASSES = ("Identity", "Cast", "Neg", "Reshape", "Squeeze", "StopGradient", "Sum", "Mean")
"""Operations that leave a scalar a sum over rows."""
_ADDS = ("AddV2", "Add", "AddN", "Sub")
_DIVIDES = ("RealDiv", "Div", "DivNoNan", "TrueDiv")
_MULTIPLIES = ("Mul", *_DIVIDES)
_OF_SHAPE = re.compile(r"(?:.*/)?(Shape|Size)(?:_\d+)?")
"""The names of the constants that `tf.shape` and `tf.size` become where a shape is known."""
_OF_DIVERGENCE = -0.5
"""The factor of the KL divergence of a normal distribution, as of a VAE; not 1 by two rows."""
_TOTALS = (
    "CollectiveReduce", "CollectiveReduceV2", "CollectiveReduceV3", "CollectiveGather",
    "CollectiveGatherV2", "NcclAllReduce", "CrossReplicaSum", "HorovodAllreduce",
    "HorovodAllgather",
)  # fmt: skip
"""Operations whose result is the same on all replicas: what a script's own step adds up by."""
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")


@dataclass(frozen=True, kw_only=True)
class Count:
    """What a sum over rows is divided by: a sum over rows too, which no variable decides.

    Attributes:
        sum: this replica's part of it, a scalar.
        finish: makes the divisor of the sum of all replicas, as the step does of its own.
    """

    sum: Any
    finish: Callable[[Any], Any]

    def then(self, step: Callable[[Any], Any]) -> Count:
        """The count of which the step makes its divisor by one step more."""
        return Count(sum=self.sum, finish=lambda total: step(self.finish(total)))


@dataclass(frozen=True, kw_only=True)
class Term:
    """A part of a scalar: `factor` times `value`, both scalars.

    Attributes:
        value: a tensor.
        factor: a number or a tensor that depends on no row.
        is_sum: whether `value` is a sum over rows.
        count: what such a sum is divided by besides; None where it is not.
    """

    value: Any
    factor: Any = 1.0
    is_sum: bool = False
    count: Count | None = None


class RowSums:
    """Finds sums over rows in the graph of one step."""

    def __init__(
        self,
        data: Any,
        counts: Sequence[Any] = (),
        gathered: Collection[tuple[int, str]] = frozenset(),
        totals: Collection[tuple[int, str]] = frozenset(),
        own: Collection[tuple[int, str]] = frozenset(),
    ) -> None:
        """Look at the step on this part of a batch.

        Args:
            data: tensors with the rows along axis 0.
            counts: tensors that know how many rows there are, scalars.
            gathered: keys of tensors with the rows of all replicas.
            totals: keys of what replicas have added up.
            own: keys of what variables hold that are others on each replica, as those of metrics.
        """
        self._gathered = gathered
        self._totals = totals
        self._own = own
        rows = [t for t in tf.nest.flatten(data) if is_symbolic(t)]
        self._sizes = {t.shape[0] for t in rows if t.shape.rank}
        parts = [one for t in tf.nest.flatten(data) for one in _entries_of(t) if is_symbolic(one)]
        self._entries = set(map(key_of, parts))
        self._known = {key_of(t) for t in [*rows, *parts, *counts] if is_symbolic(t)}
        self._with_rows = {key_of(t) for t in rows if t.shape.rank}
        self._data = {key_of(t) for t in rows}
        self._axes = AxisSizes(self._data, self._sizes)
        self._depends: dict[tuple[int, str], bool] = {}
        self._means: set[tuple[int, str]] = set()
        self._may_depend: dict[tuple[int, str], bool] = {}
        self._differs: dict[tuple[int, str], bool] = {}

    def take_for_rows(self, tensor: Any) -> None:
        """Take `tensor`, with this replica's rows along axis 0, for a part of the batch."""
        for keys in (self._known, self._with_rows, self._data):
            keys.add(key_of(tensor))

    def take_for_mean(self, tensor: Any) -> None:
        """Remember that `tensor` is a mean, whatever its graph says."""
        if is_symbolic(tensor):
            self._means.add(key_of(tensor))

    def is_mean(self, tensor: Any) -> bool:
        """Whether a symbolic tensor is a mean by `take_for_mean`."""
        return key_of(tensor) in self._means

    def terms(self, scalar: Any) -> list[Term]:
        """What `scalar` is the sum of, where some of it is a sum over rows.

        Empty where nothing is, where it is unknown, or where `scalar` is not a symbolic scalar.
        """
        if not is_symbolic(scalar) or scalar.shape.rank != 0:
            return []
        terms = list(self._terms(scalar, 1.0))
        return terms if any(term.is_sum for term in terms) else []

    def is_gathered(self, tensor: Any) -> bool:
        """Whether axis 0 of a tensor has the rows of all replicas, by `all_gather_batch`.

        What each replica computes of them is the whole, so its sums are weighed as means are.
        """
        if not self._gathered or not is_symbolic(tensor) or not tensor.shape.rank:
            return False
        operation = origin_of_rows(tensor)
        if operation.type == "ConcatV2":
            return all(self.is_gathered(one) for one in operation.inputs[:-1])
        return any(key_of(output) in self._gathered for output in operation.outputs)

    def depends_on_batch(self, tensor: Any) -> bool:
        """Whether a tensor is computed from the batch.

        If this is unknown, as for the argument of a function that the step calls, it is.
        """
        if not is_symbolic(tensor):
            return True
        own = key_of(tensor)
        if own not in self._may_depend:
            self._may_depend[own] = self._is_reached(tensor, self._may_depend, inputs_of)
        return self._may_depend[own]

    def may_differ(self, tensor: Any) -> bool:
        """Whether a tensor is computed from this replica's rows, other than by a total of all.

        If this is unknown, as for the argument of a function that the step calls, it may. What
        variables hold is taken for the same on all replicas, but for those of metrics.
        """
        if not is_symbolic(tensor):
            return True
        own = key_of(tensor)
        if own not in self._differs:
            self._differs[own] = self._is_reached(tensor, self._differs, self._own_inputs)
        return self._differs[own]

    def _own_inputs(self, tensor: Any) -> Sequence[Any] | None:
        """What may make a tensor another one on each replica; None where that is unknown."""
        name = key_of(tensor)
        if tensor.op.type in _TOTALS or name in self._totals or name in self._gathered:
            return ()
        if tensor.op.type.endswith("CandidateSampler") and tensor.value_index != 1:
            return ()  # the drawn classes; output 1 is about the classes of each row
        if name in self._own:
            return None
        return inputs_of(tensor)

    def is_data(self, tensor: Any) -> bool:
        """Whether a symbolic tensor is part of the batch itself, or the number of its rows."""
        return key_of(tensor) in self._known

    def is_row_of_batch(self, tensor: Any) -> bool:
        """Whether a symbolic tensor is part of the batch, with this replica's rows along axis 0."""
        return key_of(tensor) in self._with_rows

    def is_entries_of_batch(self, tensor: Any) -> bool:
        """Whether a symbolic tensor has the entries of a ragged or sparse tensor of the batch.

        Along axis 0 each row has any number of them.
        """
        return key_of(tensor) in self._entries

    def is_of_rows(self, values: Any) -> bool:
        """Whether a tensor is computed from the batch and has this replica's rows along axis 0."""
        if not is_symbolic(values) or not self._knows_batch(values) or self.is_gathered(values):
            return False
        return bool(values.shape.rank) and self._has_rows(values)

    def divides_by_count(self, operation: Any) -> bool:
        """Whether an operation divides a sum over rows by a count of entries."""
        return self._counted(operation) is not None

    def _terms(self, tensor: Any, factor: Any) -> Iterator[Term]:
        operation = tensor.op
        if key_of(tensor) in self._means:
            yield Term(value=tensor, factor=factor)
        elif self._is_row_sum(tensor):
            yield Term(value=tensor, factor=factor, is_sum=True)
        elif (counted := self._counted(operation)) is not None:
            yield Term(value=operation.inputs[0], factor=factor, is_sum=True, count=counted)
        elif (entries := self._selected(operation)) is not None:
            count = Count(sum=entries, finish=_unchanged)
            times = tf.cast(factor, entries.dtype) * entries
            yield Term(value=tensor, factor=times, is_sum=True, count=count)
        elif added := _added(operation):
            for place, one in enumerate(added):
                minus = operation.type == "Sub" and place == 1
                yield from self._terms(one, -factor if minus else factor)
        elif (scaled := self._scaled(operation)) is not None and _can_be_split(operation):
            one, by = scaled
            inner = list(self._terms(one, _product(factor, by, operation)))
            if any(term.is_sum for term in inner):
                yield from inner
            else:
                yield Term(value=tensor, factor=factor)
        else:
            yield Term(value=tensor, factor=factor)

    def _scaled(self, operation: Any) -> tuple[Any, Any] | None:
        """The scalar that an operation passes on, and what it multiplies or divides it by, if any.

        None where it does something else, or by something that knows the rows.
        """
        inputs = list(operation.inputs)
        if operation.type in _PASSES and inputs[0].shape.rank == 0:
            return inputs[0], None
        if operation.type not in _MULTIPLIES:
            return None
        first, second = inputs[:2]
        if operation.type == "Mul" and self._knows_batch(second):
            first, second = second, first
        if self._knows_rows(second) or _counts_entries(first, second):
            return None
        return first, second

    def _counted(self, operation: Any) -> Count | None:
        """What an operation divides a sum over rows by, if that is a count of entries."""
        if operation.type not in _DIVIDES or not self._is_row_sum(operation.inputs[0]):
            return None
        return self._count(operation.inputs[1])

    def _selected(self, operation: Any) -> Any:
        """Of how many entries that a mask selects an operation takes the mean; None elsewhere."""
        if operation.type != "Mean" or operation.outputs[0].shape.rank != 0:
            return None
        values = operation.inputs[0]
        return tf.cast(tf.size(values), tf.float32) if self.selects(values) else None

    def selects(self, values: Any) -> bool:
        """Whether the rows of a tensor are those that a mask, made of the batch, selects."""
        if not is_symbolic(values) or not values.shape.rank or values.shape[0] is not None:
            return False
        return is_selection(values) and self._knows_batch(values)

    def _count(self, tensor: Any) -> Count | None:
        if tensor.shape.rank != 0 or not self._knows_batch(tensor):
            return None
        if self._is_row_sum(tensor):
            return None if self._reads_variables(tensor) else Count(sum=tensor, finish=_unchanged)
        operation = tensor.op
        inputs = list(operation.inputs)
        if self._is_size_of_selection(operation):
            return Count(sum=tensor, finish=_unchanged)
        if operation.type in ("Identity", "Cast") and (inner := self._count(inputs[0])):
            return inner.then(lambda total: tf.cast(total, tensor.dtype))
        if operation.type in ("Maximum", "Add", "AddV2"):  # against a division by zero
            combine = tf.maximum if operation.type == "Maximum" else tf.add
            for one, bound in (inputs, inputs[::-1]):
                if not self._knows_batch(bound) and (inner := self._count(one)):
                    return inner.then(functools.partial(combine, bound))
        return None

    def _is_size_of_selection(self, operation: Any) -> bool:
        if operation.type in ("Prod", "StridedSlice") and operation.inputs[0].op.type == "Shape":
            operation = operation.inputs[0].op
        elif operation.type != "Size":
            return False
        return self.selects(operation.inputs[0])

    def _reads_variables(self, tensor: Any) -> bool:
        stack, seen = [tensor.op], set()
        while stack:
            operation = stack.pop()
            if operation.type in _READS:
                return True
            if operation.name not in seen:
                seen.add(operation.name)
                stack.extend(one.op for one in operation.inputs)
        return False

    def _is_row_sum(self, tensor: Any) -> bool:
        """Whether a scalar is one sum over rows, times factors that do not know the rows."""
        if key_of(tensor) in self._means:
            return False
        operation = tensor.op
        if (scaled := self._scaled(operation)) is not None:
            return self._is_row_sum(scaled[0])
        if added := _added(operation):
            # One factor over several terms: all of them, or it is no sum.
            return all(self._is_row_sum(one) for one in added)
        if operation.type == "L2Loss":
            return self.is_of_rows(operation.inputs[0])
        if operation.type in ("Mean", "Sum") and operation.inputs[0].op.type == "Sum":
            return self._reduces_sums(operation.inputs[0]) or self._sums_rows(operation)
        return self._sums_rows(operation)

    def _reduces_sums(self, sums: Any) -> bool:
        """Whether these are sums over rows, and their number is the same on all replicas."""
        axes = range(sums.shape.rank or 0)
        return self._sums_rows(sums.op) and all(self._axes.is_free_of_rows(sums, i) for i in axes)

    def _sums_rows(self, operation: Any) -> bool:
        if operation.type != "Sum":
            return False
        values, axes = operation.inputs
        if not self.is_of_rows(values):
            return False
        reduced = tf.get_static_value(axes)
        if reduced is None:
            return False
        return 0 in {int(axis) % values.shape.rank for axis in reduced.reshape(-1)}

    def _has_rows(self, values: Any) -> bool:
        """Whether axis 0 of a tensor is the batch's, as far as its size and origin can say."""
        rows = values.shape[0]
        if rows is None:
            return True
        is_like = any(size and rows % size == 0 for size in self._sizes)
        return is_like and not self._axes.is_free_of_rows(values, 0)

    def _knows_rows(self, factor: Any) -> bool:
        """Whether a factor is computed from the batch, or is the number of its rows."""
        constant = tf.get_static_value(factor)
        if constant is None or constant.size != 1:
            return self._knows_batch(factor)
        if float(constant) == _OF_DIVERGENCE:
            return False
        static = self._sizes - {None}
        return any(abs(float(constant)) in (size, 1 / size) for size in static if size)

    def _knows_batch(self, tensor: Any) -> bool:
        """Whether a tensor is computed from the batch, the number of its rows included."""
        own = key_of(tensor)
        if own not in self._depends:
            self._depends[own] = self._is_reached(tensor, self._depends, lambda t: t.op.inputs)
        return self._depends[own]

    def _is_reached(
        self,
        tensor: Any,
        known: dict[tuple[int, str], bool],
        inputs: Callable[[Any], Iterable[Any] | None],
    ) -> bool:
        """Whether a walk back from a tensor comes to the batch, or to what is unknown.

        Args:
            tensor: where the walk begins.
            known: answers of earlier walks of this kind; those of this one are added.
            inputs: gives the tensors that it goes to from one; None where that is unknown.
        """
        stack, seen = [tensor], set()
        while stack:
            one = stack.pop()
            name = key_of(one)
            if name in self._known or known.get(name) or self._is_shape(one):
                return True
            if name in seen or name in known or self._is_other_axis(one):
                continue
            seen.add(name)
            if (following := inputs(one)) is None:
                return True
            stack.extend(following)
        known.update(dict.fromkeys(seen, False))
        return False

    def _is_other_axis(self, tensor: Any) -> bool:
        """Whether a scalar is the size of a tensor of the step along an axis without the rows.

        All replicas have the same there: a length to which the samples of a batch are padded.
        """
        is_size = tensor.op.type == "StridedSlice" and tensor.shape.rank == 0
        return is_size and self._axes.is_size_free_of_rows(tensor)

    def _is_shape(self, tensor: Any) -> bool:
        """Whether a constant is the shape or size of a tensor with the rows of the batch."""
        found = _OF_SHAPE.fullmatch(tensor.op.name) if tensor.op.type == "Const" else None
        if found is None:
            return False
        value = tf.get_static_value(tensor).reshape(-1)
        rows = self._sizes - {None, 1}
        return bool(value.size) and any(int(value[0]) % size == 0 for size in rows)


def _counts_entries(total: Any, factor: Any) -> bool:
    """Whether a constant is the number of the entries that were added up, or 1 by it."""
    constant = tf.get_static_value(factor)
    if constant is None or constant.size != 1 or not float(constant):
        return False
    number = float(constant)
    return any(number == n or abs(number * n - 1) < 1e-6 for n in _numbers_of_entries(total))


def _numbers_of_entries(total: Any) -> Iterator[int]:
    """How many entries were added up to a scalar, in one sum or in several, one by axis."""
    while total.op.type in (*_PASSES, *_MULTIPLIES, "L2Loss"):
        kind, values = total.op.type, list(total.op.inputs)
        if kind == "Mean" and values[0].shape.rank:
            return
        if kind in ("L2Loss", "Sum") and (number := values[0].shape.num_elements()):
            yield number
        if kind == "Mul" and tf.get_static_value(values[0]) is not None:
            values.reverse()
        if kind in _MULTIPLIES and tf.get_static_value(values[1]) is None:
            return
        total = values[0]


def _entries_of(data: Any) -> list[Any]:
    """The tensors of a ragged or sparse tensor that have any number of entries for each row."""
    if isinstance(data, tf.RaggedTensor):
        return [data.flat_values]
    return [data.indices, data.values] if isinstance(data, tf.SparseTensor) else []


def _unchanged(total: Any) -> Any:
    return total


def _can_be_split(operation: Any) -> bool:
    """Whether gradients go through an operation to what it passes on."""
    return operation.type != "StopGradient" and bool(operation.inputs[0].dtype.is_floating)


def _product(factor: Any, by: Any, operation: Any) -> Any:
    """`factor` times what `operation` multiplies by, given what it takes besides."""
    if by is None:
        return -factor if operation.type == "Neg" else factor
    by = by if operation.type == "Mul" else 1 / by
    return tf.cast(factor, by.dtype) * by


def _added(operation: Any) -> list[Any]:
    """The scalars that an operation adds up; none where it does something else."""
    inputs = list(operation.inputs)
    if operation.type == "Sum" and inputs[0].op.type == "Pack":
        inputs = list(inputs[0].op.inputs)  # Keras adds up losses so
    elif operation.type not in _ADDS:
        return []
    return inputs if all(one.shape.rank == 0 for one in inputs) else []
