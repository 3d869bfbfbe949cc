"""Values of a step that combine rows of the batch, computed of the rows of all replicas.

A replica has its own rows. Contrastive losses, correlations over the batch, normalization by hand
and mixup combine several of them. Layers and steps keep what they see in variables: the codebook of
a VQ-VAE as moving averages, DINO's center, a queue of earlier features, running moments, counts.
Replicas' values of these cannot be added up. So a value that is assigned, and a loss whose gradient
is taken, is computed again from the graph of the step as one device would compute it:

- a sum or a mean over rows is added up over the replicas;
- another operation that combines rows gets the rows of all replicas;
- the number of rows is that of the global batch;
- what a metric has counted is added up, where its result is assigned.

Operations that work on each row alone are not repeated: what they made of the rows is gathered. For
the gradient, the part that is computed again is differentiated on each replica with respect to what
was gathered, and the replica's tape continues from its own rows.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import tensorflow as tf

from phalanx.gradients.additivity import Additivity
from phalanx.gradients.all_reduce import reduce_sum
from phalanx.gradients.axis_sizes import key_of
from phalanx.gradients.gathered_batch import gather_rows, own_rows
from phalanx.gradients.origin_of_rows import keeps_axis_0
from phalanx.gradients.recomputed import calls_function, compute_again, graph_of, is_pure
from phalanx.gradients.replica_batch import ReplicaBatch
from phalanx.gradients.row_dependence import SHAPES, RowDependence, may_be_rows

_log = logging.getLogger("phalanx")

_MOST_ENTRIES_OF_A_ROW = 1 << 14
"""More are not gathered: feature maps take longer to send than a step takes."""


class NotComputedAgainError(Exception):
    """A value cannot be computed of the rows of all replicas; the message says why."""


class _Kind(Enum):
    """What a tensor that is not computed again is to the replicas."""

    SAME = "same"
    ROWS = "rows"
    SUM = "sum"
    MEAN = "mean"
    NUMBER = "number"
    COUNT = "count"


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A tensor of which others are computed again.

    Attributes:
        kind: how the replicas' tensors make the one of all.
        value: gives what this replica passes on: its rows, or its part of a sum or a mean or a
            count; for other kinds what all replicas have.
    """

    kind: _Kind
    value: Callable[[], Any]


_Plan = tuple[dict[str, Any], dict[str, _Source]]
"""Operations to repeat, and the sources of the tensors that they take, by names."""


class GlobalValues:
    """Values of one replica's step, of the rows of all replicas."""

    def __init__(self, replica_batch: ReplicaBatch) -> None:
        """Compute them in the step that `replica_batch` belongs to."""
        self._batch = replica_batch
        self._dependence = RowDependence(replica_batch)
        self._known: dict[tuple[int, str], Any] = {}

    def differs(self, value: Any) -> bool:
        """Whether a symbolic tensor is made of this replica's rows, and has no row for each."""
        return self._rows.may_differ(value) and self._dependence.kind(value) is not Additivity.ROWS

    def mixes(self, scalar: Any) -> bool:
        """Whether a symbolic scalar combines rows such that replicas' cannot be added up."""
        if scalar.shape.rank != 0 or not scalar.dtype.is_floating:
            return False
        return self._rows.may_differ(scalar) and self._is_mixed(scalar)

    def mixes_in_rows(self, values: Any) -> bool:
        """Whether a symbolic tensor has something for each row that is made of others, too."""
        return self.mixes_entries(values) and self._dependence.has_row_for_each(values)

    def mixes_entries(self, values: Any) -> bool:
        """Whether a symbolic tensor has entries along axis 0 that are made of several rows.

        It may have any number of them: those of the rows that the step has put before others.
        """
        has_rows = bool(values.shape.rank) and values.shape[0] in (None, self._batch.static_count)
        return has_rows and self.differs(values) and self._is_mixed(values)

    def has_all_rows(self, values: Any) -> bool:
        """Whether a symbolic tensor has this replica's rows, each on its own, and all of them.

        They may be drawn, and made of no data.
        """
        if self._dependence.kind(values) is Additivity.NONE:
            return bool(values.shape.rank) and self._rows.may_differ(values)
        return self._dependence.has_all_rows(values)

    def has_entries(self, values: Any) -> bool:
        """Whether a symbolic tensor has the entries of ragged rows along axis 0."""
        return self._dependence.is_split(values)

    def _is_mixed(self, tensor: Any) -> bool:
        return self._dependence.kind(tensor) is Additivity.MIXED

    def own_rows_of(self, values: Any) -> Any:
        """This replica's rows of what a symbolic tensor is of all rows.

        Raises:
            NotComputedAgainError: as in `of`.
        """
        if not self.differs(values):
            return values
        rows = own_rows(self.of(values), self._batch)
        rows.set_shape(values.shape)
        return rows

    def of_all(self, value: Any) -> Any:
        """What one device has in place of a symbolic tensor: `of` it, if it is made of rows.

        Raises:
            NotComputedAgainError: as in `of`.
        """
        is_of_rows = self.differs(value) or self._dependence.has_all_rows(value)
        return self.of(value) if is_of_rows else value

    def of(self, value: Any) -> Any:
        """`value`, a symbolic tensor, of all rows; a collective, which all replicas call.

        Raises:
            NotComputedAgainError: it needs an operation with a state, a function, or large rows.
        """
        again, sources = self._plan(value)
        return self._compute(value, again, sources)

    def gradient_parts(self, scalar: Any, *, is_mean: bool) -> tuple[list[Any], list[Any]]:
        """Tensors of this replica, and the gradients of the global `scalar` with respect to them.

        A tape that takes these for the gradients of its targets gives the replica's part.

        Args:
            scalar: a scalar that mixes rows.
            is_mean: whether the parts are weighed by the replicas' samples and then added up.
                Else they are added up as they are.

        Raises:
            NotComputedAgainError: as in `of`; or an operation has a gradient of its own.
        """
        again, sources = self._plan(scalar)
        if own := next((o for o in again.values() if _has_own_gradient(o)), None):
            raise NotComputedAgainError(f"the gradient of {own.name}")
        if any(_is_weight(tensor) for one in again.values() for tensor in one.inputs):
            _warn_of_repeated_layers()
        whole = self._compute(scalar, again, sources)
        tensors = {
            tensor.name: tensor
            for operation in again.values()
            for tensor in operation.inputs
            if tensor.name in sources and tensor.dtype.is_floating and tensor.op.type != "Const"
        }
        values = [self._known[key_of(tensor)] for tensor in tensors.values()]
        upstream = tf.gradients(whole, values, stop_gradients=values)
        parts = [
            (tensor, self._own_part(tf.convert_to_tensor(one), tensor, sources[name].kind, is_mean))
            for (name, tensor), one in zip(tensors.items(), upstream, strict=True)
            if one is not None
        ]
        return [tensor for tensor, _ in parts], [gradient for _, gradient in parts]

    def _own_part(self, upstream: Any, tensor: Any, kind: _Kind, is_mean: bool) -> Any:
        """The gradient with respect to this replica's `tensor`, given that of all replicas'."""
        if kind is _Kind.ROWS:
            upstream = own_rows(upstream, self._batch)
        if kind in (_Kind.ROWS, _Kind.SUM):
            held = tf.cast(self._batch.count > 0, upstream.dtype)
            return upstream * (self._batch.inverse_weight(upstream.dtype) if is_mean else held)
        return upstream if is_mean else upstream * tf.cast(self._batch.weight, upstream.dtype)

    def _compute(self, value: Any, again: dict[str, Any], sources: dict[str, _Source]) -> Any:
        needed = {
            tensor.name: tensor
            for operation in again.values()
            for tensor in operation.inputs
            if tensor.name in sources
        }
        self._exchange(needed if again else {value.name: value}, sources)
        if key_of(value) not in self._known:
            values = {name: self._known[key_of(tensor)] for name, tensor in needed.items()}
            graph = graph_of(again.values())
            self._known[key_of(value)] = compute_again(
                graph, values, value.name, name="of_all_rows"
            )
        return self._known[key_of(value)]

    def _exchange(self, tensors: Mapping[str, Any], sources: Mapping[str, _Source]) -> None:
        """Know `tensors` of all replicas: rows travel together, and sums do."""
        new = {name: one for name, one in tensors.items() if key_of(one) not in self._known}

        def of_kind(*kinds: _Kind) -> tuple[list[Any], list[Any]]:
            names = [name for name in new if sources[name].kind in kinds]
            return [new[name] for name in names], [sources[name].value() for name in names]

        for exchange, kinds in (
            (lambda values: values, (_Kind.SAME, _Kind.NUMBER)),
            (gather_rows, (_Kind.ROWS,)),
            (self._batch.sums_over_replicas, (_Kind.SUM, _Kind.MEAN)),
            (reduce_sum, (_Kind.COUNT,)),
        ):
            own, values = of_kind(*kinds)
            wholes = exchange(values) if values else []
            self._known.update(zip(map(key_of, own), wholes, strict=True))

    def _plan(self, value: Any) -> _Plan:
        while (plan := self._plan_with_rows(value)) is None:
            pass  # more tensors are taken for rows now
        kinds = {source.kind for source in plan[1].values()}
        if self._batch.static_count is not None and kinds & {_Kind.ROWS, _Kind.NUMBER}:
            # Computed again, the graph has this replica's number of rows as a constant.
            raise NotComputedAgainError("the step uses x.shape[0]; use tf.shape(x)[0]")
        return plan

    def _plan_with_rows(self, value: Any) -> _Plan | None:
        again: dict[str, Any] = {}
        sources: dict[str, _Source] = {}
        stack, users = [value], {value.name: None}
        while stack:
            tensor = stack.pop()
            if tensor.name in sources or tensor.op.name in again:
                continue
            if (source := self._source(tensor)) is not None:
                sources[tensor.name] = source
            elif is_pure(tensor.op):
                again[tensor.op.name] = tensor.op
                for one in tensor.op.inputs:
                    users.setdefault(one.name, tensor)
                    stack.append(one)
            elif calls_function(tensor.op):
                self._take_for_rows(tensor, users)
                return None
            else:
                raise NotComputedAgainError(f"{tensor.op.type} in {tensor.op.name}")
        return again, sources

    def _take_for_rows(self, tensor: Any, users: Mapping[str, Any]) -> None:
        """Have what is made of `tensor`, the output of a function, for rows: a layer's output."""
        user = tensor
        while not may_be_rows(user) or users[user.name] is None:
            user = users[user.name]
            if user is None:
                raise NotComputedAgainError(f"{tensor.op.type} in {tensor.op.name}")
        self._dependence.take_for_rows(user)

    def _source(self, tensor: Any) -> _Source | None:
        """How to have a tensor of all replicas; None where its operation must be repeated."""
        if not self._rows.may_differ(tensor) or self._batch.is_own(tensor):
            return _Source(kind=_Kind.SAME, value=lambda: tensor)
        if (number := self._batch.of_global_batch(tensor)) is not None:
            return _Source(kind=_Kind.NUMBER, value=lambda: number)
        if self._batch.is_count_of_metric(tensor):
            return _Source(kind=_Kind.COUNT, value=lambda: tensor)
        if self._dependence.has_all_rows(tensor):
            if tensor.dtype.is_complex:
                return None  # the real numbers that it is made of are gathered
            if (tensor.shape[1:].num_elements() or 0) > _MOST_ENTRIES_OF_A_ROW:
                raise NotComputedAgainError(f"rows of {tensor.shape[1:].num_elements()} entries")
            return _Source(kind=_Kind.ROWS, value=lambda: tf.stop_gradient(tensor))
        operation = tensor.op
        if operation.type == "L2Loss" and self._dependence.has_all_rows(operation.inputs[0]):
            return _Source(kind=_Kind.SUM, value=lambda: tensor)
        if operation.type in ("Sum", "Mean") and self._reduces_rows(operation):
            if operation.type == "Sum":
                return _Source(kind=_Kind.SUM, value=lambda: tensor)
            return self._mean(tensor) if tensor.dtype.is_floating else None
        if self._dependence.is_mean(tensor) and not self._is_mixed(tensor):
            return self._mean(tensor)
        if operation.type in SHAPES:
            values = operation.inputs[tensor.value_index]  # ShapeN has an output for each input
            if self._dependence.has_all_rows(values):
                shape = lambda: self._shape(tensor, values)  # noqa: E731
                return _Source(kind=_Kind.NUMBER, value=shape)
        return None

    def _mean(self, tensor: Any) -> _Source:
        weight = tf.cast(self._batch.weight, tensor.dtype)
        return _Source(kind=_Kind.MEAN, value=lambda: tensor * weight)

    @property
    def _rows(self) -> Any:
        return self._batch.row_sums  # another one once the step's data is known

    def _reduces_rows(self, reduction: Any) -> bool:
        values, axes = reduction.inputs
        if tf.get_static_value(axes) is None or keeps_axis_0(values, axes):
            return False
        # Replicas can add up only what has one shape on all of them.
        is_added_up = reduction.outputs[0].shape.is_fully_defined()
        return is_added_up and self._dependence.has_all_rows(values)

    def _shape(self, tensor: Any, values: Any) -> Any:
        """The shape or the size of all rows, of that of this replica's."""
        own = tf.shape(values, out_type=tf.int64)[0]
        parts, total = (tf.cast(n, tf.int64) for n in (self._batch.own_rows, self._batch.total))
        rows = tf.cast(own * total // parts, tensor.dtype)  # 5 of 10 beside 30 of 60
        if tensor.op.type == "Size":
            return tensor // tf.cast(tf.maximum(own, 1), tensor.dtype) * rows
        return tf.concat([rows[None], tensor[1:]], axis=0)


def _is_weight(tensor: Any) -> bool:
    """Whether a tensor is a kernel: what a layer multiplies by."""
    while tensor.op.type in ("Cast", "Identity"):
        tensor = tensor.op.inputs[0]
    return tensor.op.type == "ReadVariableOp" and (tensor.shape.rank or 0) > 1


@functools.cache
def _warn_of_repeated_layers() -> None:
    _log.warning(
        "A layer or a step combines rows of the batch before the last layers. For one device's "
        "answer each worker computes what follows for the whole batch, so more workers do not make "
        "that faster."
    )


def _has_own_gradient(operation: Any) -> bool:
    """Whether a gradient was given by `tf.custom_gradient`, which keeps tensors of one replica."""
    return any(name == "_gradient_op_type" for name in operation.node_def.attr)
