"""Whether a function of batches gives, of some rows, the bits that it gives for them in the batch.

This is known of functions that consist of operations with a rule below. Functions such as `exp` and
sums of floating-point numbers have none: their last bits may depend on how many rows there are,
because the last few of them are computed without vector instructions.

Private name used: `DatasetV2._functions`, with what it gives
(`StructuredFunctionWrapper.function`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from phalanx.keras_compat.dataset_graph import Transformation

_ELEMENTWISE = re.compile(
    # Of one tensor or several, each value from the values at its place; exact in IEEE 754.
    r"Abs|Add|AddV2|AsString|BitwiseAnd|BitwiseOr|BitwiseXor|Cast|Ceil|ClipByValue|DecodeBase64"
    r"|Div|DivNoNan|EncodeBase64|Equal|Floor|FloorDiv|FloorMod|Greater|GreaterEqual|Identity"
    r"|IsFinite|IsInf|IsNan|Less|LessEqual|LogicalAnd|LogicalNot|LogicalOr|Maximum|Minimum|Mod|Mul"
    r"|Neg|NotEqual|RealDiv|RegexFullMatch|RegexReplace|Relu|Rint|Round|SelectV2|Sign|Sqrt|Square"
    r"|SquaredDifference|StaticRegexFullMatch|StaticRegexReplace|StopGradient|StringLength"
    r"|StringLower|StringStrip|StringToHashBucketFast|StringToNumber|StringUpper|Sub|Substr|Bucketize"
    r"|ZerosLike|OnesLike"
)
_RESIZES = re.compile(r"Resize(Area|Bicubic|Bilinear|NearestNeighbor)")
_EXACT_REDUCTIONS = re.compile(r"All|Any|ArgMax|ArgMin|Max|Min")


def is_rowwise(step: Transformation) -> bool:
    """Whether the function of a map treats the rows of a batch independently, to the bit.

    Args:
        step: a map whose function changes no state.
    """
    (wrapper,) = step.dataset._functions()
    graph = wrapper.function.graph
    captured = len(graph.captures)
    arguments = graph.inputs[: len(graph.inputs) - captured]
    if any(one.shape.rank in (None, 0) or one.dtype == tf.variant for one in arguments):
        return False
    rows = {one.name: True for one in arguments}
    rows |= {one.name: False for one in graph.inputs[len(arguments) :]}
    needed = _needed(graph)
    for operation in graph.get_operations():  # each after those that it reads
        if operation.name not in needed or operation.type == "Placeholder":
            continue
        by_row = [rows[one.name] for one in operation.inputs]
        if any(by_row) and not _keeps_rows(operation, by_row):
            return False
        rows |= {one.name: any(by_row) for one in operation.outputs}
    return all(rows[one.name] or one.shape.rank == 0 for one in graph.outputs)


def _needed(graph: Any) -> set[str]:
    """The operations that a function runs; it drops the others."""
    found: set[str] = set()
    left = [*(one.op for one in graph.outputs), *graph.control_outputs]
    while left:
        operation = left.pop()
        if operation.name not in found:
            found.add(operation.name)
            left += [one.op for one in operation.inputs] + list(operation.control_inputs)
    return found


def _keeps_rows(operation: Any, by_row: list[bool]) -> bool:
    inputs = list(operation.inputs)
    if any(one.shape.rank is None for one in (*inputs, *operation.outputs)):
        return False
    if _ELEMENTWISE.fullmatch(operation.type):
        return _broadcasts(inputs, by_row)
    rule = _RULES.get(operation.type)
    if rule is None and _RESIZES.fullmatch(operation.type):
        rule = _only_first
    if rule is None and _EXACT_REDUCTIONS.fullmatch(operation.type):
        rule = _reduction
    return rule is not None and rule(operation, inputs, by_row)


def _broadcasts(inputs: list[Any], by_row: list[bool]) -> bool:
    """Whether no axis but the first is that of the rows."""
    ranks = {one.shape.rank for one, is_row in zip(inputs, by_row, strict=True) if is_row}
    if len(ranks) != 1:
        return False
    (rank,) = ranks
    constants = [one.shape for one, is_row in zip(inputs, by_row, strict=True) if not is_row]
    return rank > 0 and all(s.rank < rank or (s.rank == rank and s[0] == 1) for s in constants)


def _only_first(operation: Any, inputs: list[Any], by_row: list[bool]) -> bool:
    return by_row[0] and not any(by_row[1:])


def _reduction(operation: Any, inputs: list[Any], by_row: list[bool]) -> bool:
    axes = tf.get_static_value(inputs[1])
    return (
        _only_first(operation, inputs, by_row)
        and axes is not None
        and all(axis % inputs[0].shape.rank for axis in axes.reshape(-1).tolist())
    )


def _lookup(operation: Any, inputs: list[Any], by_row: list[bool]) -> bool:
    return by_row == [False, True, False] and inputs[2].shape.rank == 0


def _gather(operation: Any, inputs: list[Any], by_row: list[bool]) -> bool:
    axis = tf.get_static_value(inputs[2])
    return by_row == [False, True, False] and axis == 0 and not operation.get_attr("batch_dims")


def _one_hot(operation: Any, inputs: list[Any], by_row: list[bool]) -> bool:
    return _only_first(operation, inputs, by_row) and operation.get_attr("axis") != 0


def _expand_dims(operation: Any, inputs: list[Any], by_row: list[bool]) -> bool:
    axis = tf.get_static_value(inputs[1])
    if axis is None or not _only_first(operation, inputs, by_row):
        return False
    return bool(int(axis.item()) % (inputs[0].shape.rank + 1))


def _squeeze(operation: Any, inputs: list[Any], by_row: list[bool]) -> bool:
    axes = operation.get_attr("squeeze_dims")
    return bool(axes) and all(axis % inputs[0].shape.rank for axis in axes)


def _reshape(operation: Any, inputs: list[Any], by_row: list[bool]) -> bool:
    """To `[-1, ...]`, where a row stays a row."""
    shape, inner = tf.get_static_value(inputs[1]), inputs[0].shape[1:]
    if shape is None or not len(shape) or not _only_first(operation, inputs, by_row):
        return False
    sizes = [int(size) for size in shape]
    if sizes[0] != -1 or not inner.is_fully_defined():
        return False
    return bool(tf.TensorShape(sizes[1:]).num_elements() == inner.num_elements())


def _transpose(operation: Any, inputs: list[Any], by_row: list[bool]) -> bool:
    order = tf.get_static_value(inputs[1])
    return _only_first(operation, inputs, by_row) and order is not None and order[0] == 0


def _concat(operation: Any, inputs: list[Any], by_row: list[bool]) -> bool:
    axis = tf.get_static_value(inputs[-1])
    return all(by_row[:-1]) and axis is not None and bool(axis % inputs[0].shape.rank)


def _pad(operation: Any, inputs: list[Any], by_row: list[bool]) -> bool:
    paddings = tf.get_static_value(inputs[1])
    return _only_first(operation, inputs, by_row) and paddings is not None and not paddings[0].any()


def _slice(operation: Any, inputs: list[Any], by_row: list[bool]) -> bool:
    """`x[:, ...]`: all rows, in order."""
    strides = tf.get_static_value(inputs[3])
    if strides is None or not _only_first(operation, inputs, by_row):
        return False
    masks = {
        name: operation.get_attr(f"{name}_mask")
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    if masks["ellipsis"] & 1:
        return not masks["new_axis"] and inputs[0].shape.rank > len(strides) - 1
    free = masks["begin"] & masks["end"] & 1
    taken = (masks["new_axis"] | masks["shrink_axis"]) & 1
    return bool(free and not taken and strides[0] == 1)


_RULES: dict[str, Callable[[Any, list[Any], list[bool]], bool]] = {
    "ConcatV2": _concat,
    "ExpandDims": _expand_dims,
    "GatherV2": _gather,
    "LookupTableFindV2": _lookup,
    "MirrorPad": _pad,
    "OneHot": _one_hot,
    "Pad": _pad,
    "PadV2": _pad,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "StridedSlice": _slice,
    "Transpose": _transpose,
}
