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
        key = (*key_of(tensor), axis)
        if key not in self._known:
            self._known[key] = False  # in a loop
            self._known[key] = self._is_free(tensor, axis)
        return self._known[key]

    def _is_free(self, tensor: Any, axis: int) -> bool:
        if key_of(tensor) in self._rows:
            return axis > 0
        if tensor.shape.rank is None:
            return False
        if tensor.shape[axis] is not None:
            return not self._may_be_rows(tensor.shape[axis])
        operation, inputs = tensor.op, list(tensor.op.inputs)
        kind, from_end = operation.type, tensor.shape.rank - axis
        if kind in _BY_ENTRY:
            operands = [one for one in inputs if (one.shape.rank or 0) >= from_end]
            return all(self.is_free_of_rows(o, o.shape.rank - from_end) for o in operands)
        if kind in ("BatchMatMulV2", "MatMul") and axis < tensor.shape.rank - 1:
            turned = operation.get_attr("adj_x" if kind == "BatchMatMulV2" else "transpose_a")
            return not turned and self.is_free_of_rows(inputs[0], axis)
        if kind in ("ResourceGather", "GatherV2"):
            indices = inputs[1]
            of_first_axis = kind == "ResourceGather" or tf.get_static_value(inputs[2]) == 0
            within = indices.shape.rank is not None and axis < indices.shape.rank
            return bool(of_first_axis and within and self.is_free_of_rows(indices, axis))
        if kind == "Transpose":
            order = tf.get_static_value(inputs[1])
            return order is not None and self.is_free_of_rows(inputs[0], int(order[axis]))
        if kind == "ConcatV2":
            return all(self.is_free_of_rows(one, axis) for one in inputs[:-1])
        if kind == "Reshape":
            return self.is_entry_free_of_rows(inputs[1], axis)
        if kind == "StridedSlice":
            return self._is_slice_free(operation, axis)
        if kind in _REDUCES and operation.get_attr("keep_dims"):
            return self.is_free_of_rows(inputs[0], axis)
        return False

    def _may_be_rows(self, size: int) -> bool:
        return any(size % rows == 0 for rows in self._sizes if rows)

    def _is_slice_free(self, operation: Any, axis: int) -> bool:
        others = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
        if any(operation.get_attr(mask) for mask in others):
            return False
        value, begin, end = operation.inputs[:3]
        for bounds, mask in ((begin, "begin_mask"), (end, "end_mask")):
            is_open = operation.get_attr(mask) & (1 << axis)
            if axis < bounds.shape[0] and not is_open and tf.get_static_value(bounds) is None:
                return False
        return self.is_free_of_rows(value, axis)

    def is_entry_free_of_rows(self, shape: Any, place: int) -> bool:
        """Whether the rows do not decide the entry at `place` of a tensor that holds a shape."""
        operation, inputs = shape.op, list(shape.op.inputs)
        if operation.type == "Const":
            size = int(tf.get_static_value(shape)[place])
            return size >= 0 and not self._may_be_rows(size)
        if operation.type in ("Cast", "Identity"):
            return self.is_entry_free_of_rows(inputs[0], place)
        if operation.type == "Shape":
            return self.is_free_of_rows(inputs[0], place)
        if operation.type == "Pack":
            return self.is_size_free_of_rows(inputs[place])
        if operation.type == "GatherV2":
            places = tf.get_static_value(inputs[1])
            return places is not None and self.is_entry_free_of_rows(inputs[0], int(places[place]))
        if operation.type == "ConcatV2":
            for part in inputs[:-1]:
                if part.shape[0] is None:
                    return False
                if place < part.shape[0]:
                    return self.is_entry_free_of_rows(part, place)
                place -= part.shape[0]
        return False

    def is_size_free_of_rows(self, size: Any) -> bool:
        """Whether a scalar is a size that the rows do not decide."""
        operation = size.op
        if operation.type in ("Cast", "Identity"):
            return self.is_size_free_of_rows(operation.inputs[0])
        if operation.type == "Const":
            return bool(tf.get_static_value(size) >= 0)
        if operation.type != "StridedSlice":
            return False
        shape, begin = operation.inputs[:2]
        place = tf.get_static_value(begin)
        if place is None or shape.shape.rank != 1 or shape.shape[0] is None:
            return False
        if shape.op.type == "Const":  # a shape that is known, rows and all
            return False
        return self.is_entry_free_of_rows(shape, int(place[0]) % shape.shape[0])


def key_of(tensor: Any) -> tuple[int, str]:
    """Graph and name: TensorFlow makes a new tensor each time a graph is asked for it."""
    return id(tensor.graph), tensor.name
