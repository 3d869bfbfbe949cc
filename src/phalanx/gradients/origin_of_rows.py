"""Where the rows of a tensor come from: the walk back through a graph."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_KEEPS_ROWS = """
Abs AddV2 AvgPool BiasAdd Cast Conv2D DepthwiseConv2dNative Elu Exp ExpandDims FusedBatchNormV3
Identity LeakyRelu Log Log1p MatMul MaxPool Maximum Minimum Mul Neg OnesLike Pow RealDiv Relu Relu6
Reshape Rsqrt Select SelectV2 Selu Sigmoid Softmax SoftmaxCrossEntropyWithLogits Softplus
SparseSoftmaxCrossEntropyWithLogits Sqrt Square SquaredDifference Squeeze Sub Tanh ZerosLike
""".split()  # noqa: SIM905 - as a list it would be forty lines
_REDUCES = ("Max", "Mean", "Min", "Sum")


def origin_of_rows(tensor: Any) -> Any:
    """The operation that makes the rows along axis 0 of a symbolic tensor.

    Operations are walked back that leave the rows what they are: those on each entry, on other
    axes, layers. The first of several inputs with a free axis 0 is followed.
    """
    while True:
        operation = tensor.op
        inputs = [one for one in operation.inputs if one.shape.rank and one.shape[0] is None]
        if not inputs or not keeps_rows(operation, inputs[0]):
            return operation
        tensor = inputs[0]


def keeps_rows(operation: Any, tensor: Any) -> bool:
    """Whether an operation leaves the rows of its input `tensor` what they are."""
    if operation.type == "ConcatV2":
        axis = tf.get_static_value(operation.inputs[-1])
        return axis is not None and int(axis) % tensor.shape.rank != 0
    if operation.type in _REDUCES:
        return keeps_axis_0(tensor, operation.inputs[1])
    if operation.type == "StridedSlice":
        return takes_all_rows(operation)
    return operation.type in _KEEPS_ROWS


def keeps_axis_0(tensor: Any, axes: Any) -> bool:
    """Whether a reduction of a tensor with a rank over `axes` is known to leave its rows."""
    reduced = tf.get_static_value(axes)
    return reduced is not None and all(axis % tensor.shape.rank for axis in reduced.reshape(-1))


def takes_all_rows(strided_slice: Any) -> bool:
    """Whether a slice takes all of axis 0, by `:` or nothing but other axes."""
    keeps_all = strided_slice.get_attr("begin_mask") & strided_slice.get_attr("end_mask") & 1
    others = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    strides = tf.get_static_value(strided_slice.inputs[3])
    in_order = strides is not None and strides[0] == 1
    return bool(
        keeps_all and in_order and not any(strided_slice.get_attr(mask) & 1 for mask in others)
    )


def slice_takes_all_rows(operation: Any) -> bool:
    """Whether a `tf.slice` takes all of axis 0: by -1, or as the gradient of a `tf.concat` does.

    That takes what each part of the concatenation had, along another axis.
    """
    begin, size = operation.inputs[1:]
    if begin.op.type == "ConcatOffset":
        axis = begin.op.inputs[0]
        if axis.op.type == "FloorMod":  # of an axis that may be negative
            axis, rank = map(tf.get_static_value, axis.op.inputs)
            return axis is not None and rank is not None and int(axis) % int(rank) != 0
        axis = tf.get_static_value(axis)
        return axis is not None and int(axis) != 0
    begin, size = tf.get_static_value(begin), tf.get_static_value(size)
    return begin is not None and size is not None and int(begin[0]) == 0 and int(size[0]) == -1


def is_selection(tensor: Any) -> bool:
    """Whether the rows of a symbolic tensor are those that a mask selects, as `tf.boolean_mask`.

    How many they are, the data decides.
    """
    operation = origin_of_rows(tensor)
    if operation.type == "GatherV2":
        indices, axis = operation.inputs[1:]
        if tf.get_static_value(axis) != 0 or operation.get_attr("batch_dims"):
            return False
    elif operation.type == "GatherNd":
        indices = operation.inputs[1]
    else:
        return False
    return bool(origin_of_rows(indices).type == "Where")


def rows_put_together(shape: Any) -> list[Any]:
    """The numbers of rows that were concatenated to those that the shape of a tensor begins with.

    Scalars, int64; that of the shape alone where nothing is seen to be concatenated.
    """
    concatenation = _concatenation_of(shape)
    if concatenation is None:
        return [tf.cast(shape[0], tf.int64)]
    return [tf.shape(one, tf.int64)[0] for one in concatenation.inputs[:-1]]


def _concatenation_of(shape: Any) -> Any:
    while tf.is_symbolic_tensor(shape):
        operation = shape.op
        is_slice = operation.type == "StridedSlice"
        if is_slice and not _begins_at_0(operation):
            return None
        if is_slice or operation.type in ("Pack", "ConcatV2", "Identity", "Cast"):
            shape = operation.inputs[0]  # what its first entry comes from
        elif operation.type == "Shape":
            origin = origin_of_rows(operation.inputs[0])
            if origin.type == "ConcatV2":
                return origin
            if origin.type != "Fill":
                return None
            shape = origin.inputs[0]
        else:
            return None
    return None


def puts_together(rows: int, batches: int) -> bool:
    """Whether the graph of a step concatenates so many batches to tensors of `rows` rows."""
    return any(
        operation.type == "ConcatV2"
        and len(operation.inputs) - 1 == batches
        and operation.outputs[0].shape[:1] == [rows]
        and tf.get_static_value(operation.inputs[-1]) == 0
        for operation in tf.compat.v1.get_default_graph().get_operations()
    )


def _begins_at_0(strided_slice: Any) -> bool:
    begin = tf.get_static_value(strided_slice.inputs[1])
    return begin is not None and not begin.any()
