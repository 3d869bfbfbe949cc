"""Which axes of a tensor have a size that the rows of a batch do not decide.

A length to which samples are padded is the same on every replica, whatever layers lie between the
batch and the tensor that is asked for it. The walk knows common operations; of others it says no.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_BY_ENTRY = """
Abs AddV2 BiasAdd Cast Elu Erf Exp FusedBatchNormV3 Identity LeakyRelu Log Maximum Minimum Mul Neg
OnesLike Pow RealDiv Relu Relu6 Rsqrt SelectV2 Selu Sigmoid Softmax Softplus Sqrt Square
SquaredDifference StopGradient Sub Tanh ZerosLike
""".split()  # noqa: SIM905 - as a list it would be thirty lines
_REDUCES = ("Max", "Mean", "Min", "Prod", "Sum")
_Axes = list[tuple[Any, int]]


class AxisSizes:
    """What is known of the sizes of tensors in the graph of one step."""

    def __init__(self, rows: set[tuple[int, str]], sizes: set[int | None]) -> None:
        """Know the batch.

        Args:
            rows: the keys of the tensors that have its rows along axis 0.
            sizes: how many rows those have, where their shapes say it.
        """
        self._rows = rows
        self._sizes = sizes - {None, 1}
        self._known: dict[tuple[int, str, int], bool] = {}

    def is_free_of_rows(self, tensor: Any, axis: int) -> bool:
        """Whether the rows do not decide the size of `tensor` along `axis`, from 0 on."""
        return self._all_free([(tensor, axis)])

    def is_size_free_of_rows(self, size: Any) -> bool:
        """Whether a scalar is a size that the rows do not decide."""
        return self._all_free(self._origins_of_size(size))

    def _all_free(self, axes: _Axes | None) -> bool:
        """Whether a walk back from these axes ends only at axes that are free of rows."""
        seen: set[tuple[int, str, int]] = set()
        stack = list(axes or ())
        while stack:
            tensor, axis = stack.pop()
            key = (*key_of(tensor), axis)
            if key in seen or self._known.get(key):
                continue
            seen.add(key)
            following = None if key in self._known else self._origins(tensor, axis)
            if following is None:
                self._known[key] = False
                return False
            stack.extend(following)
        self._known.update(dict.fromkeys(seen, True))
        return axes is not None

    def _origins(self, tensor: Any, axis: int) -> _Axes | None:
        """The axes that decide the size of this one: none where it is free of rows for certain.

        None where the rows may decide it.
        """
        if key_of(tensor) in self._rows:
            return [] if axis > 0 else None
        if tensor.shape.rank is None:
            return None
        size = tensor.shape[axis]
        if size is not None and not self._may_be_rows(size):
            return []
        operation, inputs = tensor.op, list(tensor.op.inputs)
        kind, from_end = operation.type, tensor.shape.rank - axis
        if kind == "ReadVariableOp":
            return []
        if kind in _BY_ENTRY:
            operands = [(o, o.shape.rank - from_end) for o in inputs if _has_axis(o, from_end)]
            computed = [(o, i) for o, i in operands if not _is_of_the_model(o)]
            return computed or operands or None
        if kind in ("BatchMatMulV2", "MatMul") and axis >= tensor.shape.rank - 2:
            is_first = axis == tensor.shape.rank - 2
            names = (
                ("adj_x", "adj_y") if kind == "BatchMatMulV2" else ("transpose_a", "transpose_b")
            )
            turned = operation.get_attr(names[0] if is_first else names[1])
            factor = inputs[0] if is_first else inputs[1]
            return [(factor, factor.shape.rank - (2 if is_first != turned else 1))]
        if kind == "BatchMatMulV2":
            return [(inputs[0], axis)] if inputs[0].shape.rank == tensor.shape.rank else None
        if kind in ("ResourceGather", "GatherV2"):
            indices = inputs[1]
            of_first_axis = kind == "ResourceGather" or tf.get_static_value(inputs[2]) == 0
            within = indices.shape.rank is not None and axis < indices.shape.rank
            return [(indices, axis)] if of_first_axis and within else None
        if kind == "Transpose":
            order = tf.get_static_value(inputs[1])
            return None if order is None else [(inputs[0], int(order[axis]))]
        if kind == "ConcatV2":
            return [(one, axis) for one in inputs[:-1]]
        if kind == "Reshape":
            return self._origins_of_entry(inputs[1], axis)
        if kind == "StridedSlice":
            return [(inputs[0], axis)] if _slices_by_constants(operation, axis) else None
        if kind in _REDUCES:
            return _axis_before_reduction(operation, axis)
        return None

    def _may_be_rows(self, size: int) -> bool:
        return any(size % rows == 0 for rows in self._sizes if rows)

    def _origins_of_entry(self, shape: Any, place: int) -> _Axes | None:
        """As `_origins`, of the entry at `place` of a tensor that holds a shape."""
        operation, inputs = shape.op, list(shape.op.inputs)
        if operation.type == "Const":
            size = int(tf.get_static_value(shape)[place])
            return [] if size >= 0 and not self._may_be_rows(size) else None
        if operation.type in ("Cast", "Identity"):
            return self._origins_of_entry(inputs[0], place)
        if operation.type == "Shape":
            return [(inputs[0], place)]
        if operation.type == "Pack":
            return self._origins_of_size(inputs[place])
        if operation.type == "GatherV2":
            places = tf.get_static_value(inputs[1])
            return None if places is None else self._origins_of_entry(inputs[0], int(places[place]))
        if operation.type == "ConcatV2":
            for part in inputs[:-1]:
                if part.shape[0] is None:
                    return None
                if place < part.shape[0]:
                    return self._origins_of_entry(part, place)
                place -= part.shape[0]
        return None

    def _origins_of_size(self, size: Any) -> _Axes | None:
        """As `_origins`, of a scalar that is a size."""
        operation = size.op
        if operation.type in ("Cast", "Identity"):
            return self._origins_of_size(operation.inputs[0])
        if operation.type == "Const":
            return [] if tf.get_static_value(size) >= 0 else None
        if operation.type != "StridedSlice":
            return None
        shape, begin = operation.inputs[:2]
        place = tf.get_static_value(begin)
        if place is None or shape.shape.rank != 1 or shape.shape[0] is None:
            return None
        if shape.op.type == "Const":  # a shape that is known, rows and all
            return None
        return self._origins_of_entry(shape, int(place[0]) % shape.shape[0])


def _has_axis(operand: Any, from_end: int) -> bool:
    """Whether an operand has this axis, and is not repeated along it."""
    rank = operand.shape.rank or 0
    return rank >= from_end and operand.shape[rank - from_end] != 1


def _is_of_the_model(tensor: Any) -> bool:
    """Whether a tensor is computed from nothing but numbers in the code and variables."""
    stack, seen = [tensor.op], set()
    while stack:
        operation = stack.pop()
        is_leaf = operation.type == "Const" or operation.outputs[0].dtype == tf.resource
        if not operation.inputs and not is_leaf:
            return False
        if operation.name not in seen:
            seen.add(operation.name)
            stack.extend(one.op for one in operation.inputs)
    return True


def _slices_by_constants(operation: Any, axis: int) -> bool:
    """Whether a slice takes the same part of an axis on every replica, and keeps all axes."""
    others = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    if any(operation.get_attr(mask) for mask in others):
        return False
    begin, end = operation.inputs[1:3]
    for bounds, mask in ((begin, "begin_mask"), (end, "end_mask")):
        is_open = operation.get_attr(mask) & (1 << axis)
        if axis < bounds.shape[0] and not is_open and tf.get_static_value(bounds) is None:
            return False
    return True


def _axis_before_reduction(operation: Any, axis: int) -> _Axes | None:
    """The axis of what is reduced that a reduction leaves as this one."""
    values, axes = operation.inputs
    reduced = tf.get_static_value(axes)
    if operation.get_attr("keep_dims"):
        return [(values, axis)]
    if reduced is None or values.shape.rank is None:
        return None
    dropped = {int(one) % values.shape.rank for one in reduced.reshape(-1)}
    return [(values, [one for one in range(values.shape.rank) if one not in dropped][axis])]


def key_of(tensor: Any) -> tuple[int, str]:
    """Graph and name: TensorFlow makes a new tensor each time a graph is asked for it."""
    return id(tensor.graph), tensor.name
