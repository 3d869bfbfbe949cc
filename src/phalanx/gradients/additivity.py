"""Whether what a loss or a metric computes of a batch can be added up from parts of the batch.

A loss for each row can, and so can a sum or a mean over rows. The root of a mean (RMSE), a quotient
of sums (Dice) or a comparison of rows with each other cannot: the average of the workers' values is
another number. The graph of the function says which it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

import tensorflow as tf

from phalanx.gradients.axis_sizes import key_of
from phalanx.gradients.graph_walk import judged
from phalanx.gradients.origin_of_rows import (
    is_selection,
    keeps_axis_0,
    slice_takes_all_rows,
    takes_all_rows,
)
from phalanx.gradients.row_sums import RowSums


class Additivity(Enum):
    """How a tensor depends on the rows of the batch.

    `NONE`: it does not, or on their number alone. `ROWS`: each row on its own. `TOTAL`: a sum or
    a mean over rows, or several, each times what is `NONE`. `OPAQUE`: by a function, which is not
    looked into. `MIXED`: in any other way.
    """

    NONE = "none"
    ROWS = "rows"
    TOTAL = "total"
    OPAQUE = "opaque"
    MIXED = "mixed"


_SHAPES = ("Shape", "ShapeN", "Size", "Rank")
_PASSES = """
CheckNumerics Cast EnsureShape ExpandDims Identity Neg PreventGradient Reshape Snapshot Squeeze
StopGradient
""".split()  # noqa: SIM905 - as a list it would be ten lines
_ADDS = ("Add", "AddN", "AddV2", "ConcatV2", "Pack", "Sub")
_DIVIDES = ("Div", "DivNoNan", "RealDiv", "TrueDiv")
_REDUCES = (
    "All", "Any", "ArgMax", "ArgMin", "EuclideanNorm", "Max", "Mean", "Min", "Prod", "Sum"
)  # fmt: skip
_FUNCTIONS = """
Case EagerPyFunc If PartitionedCall PyFunc PyFuncStateless StatefulPartitionedCall StatelessCase
StatelessIf StatelessWhile While
""".split()  # noqa: SIM905
_MIXES = """
Bincount ComputeAccidentalHits Diag DiagPart DynamicPartition DynamicStitch HistogramFixedWidth
InplaceAdd InplaceSub InplaceUpdate InvertPermutation L2Loss ListDiff NonMaxSuppressionV3
NonMaxSuppressionV4 NonMaxSuppressionV5 ParallelDynamicStitch RandomShuffle ScatterNd SegmentMax
SegmentMaxV2 SegmentMean SegmentMin SegmentMinV2 SegmentProd SegmentProdV2 SegmentSum SegmentSumV2
StatelessShuffle TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub
TensorScatterUpdate TensorStridedSliceUpdate Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2
UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum
""".split()  # noqa: SIM905
_LAST_AXES = {
    1: """
    ApproxTopK DenseBincount FFT IFFT IRFFT LogSoftmax MatrixDiag MatrixDiagV2 MatrixDiagV3
    NthElement RFFT Softmax TopK TopKV2
    """,
    2: """
    BandedTriangularSolve Cholesky ConjugateTranspose Eig FFT2D IFFT2D IRFFT2D LogMatrixDeterminant
    Lu MatrixBandPart MatrixDeterminant MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3
    MatrixExponential MatrixInverse MatrixLogarithm MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3
    MatrixSolve MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve Qr RFFT2D SelfAdjointEigV2 Svd
    TridiagonalMatMul TridiagonalSolve
    """,
    3: "FFT3D IFFT3D IRFFT3D RFFT3D",
}
"""Operations that combine entries along so many of the last axes, and are repeated along others."""
_MIXES_LAST_AXES = {name: axes for axes, names in _LAST_AXES.items() for name in names.split()}


def additivity_of(
    result: Any, rows: Sequence[Any], row_sums: RowSums
) -> tuple[Additivity, frozenset[tuple[int, str]]]:
    """How `result` depends on the tensors `rows`, which have the batch along axis 0.

    Args:
        result: a symbolic tensor.
        rows: symbolic tensors, what the function was given.
        row_sums: of the step.

    Returns:
        The answer, and the keys of tensors of the batch that it was made of besides `rows`.
    """
    others: set[tuple[int, str]] = set()

    def judge(tensor: Any, of_inputs: list[Additivity]) -> Additivity:
        if of_inputs:
            return additivity_of_operation(tensor, of_inputs, row_sums)
        if tensor.op.type not in _SHAPES and row_sums.is_data(tensor):
            others.add(key_of(tensor))
        return Additivity.NONE

    known = {key_of(one): Additivity.ROWS for one in rows}
    return judged(result, known, judge, leaves=_SHAPES), frozenset(others)


def additivity_of_operation(
    tensor: Any, of_inputs: list[Additivity], row_sums: RowSums
) -> Additivity:
    """How a tensor depends on the rows, given how the inputs of its operation do."""
    operation = tensor.op
    kind, found = operation.type, set(of_inputs) - {Additivity.NONE}
    if not found:
        return Additivity.NONE
    if Additivity.MIXED in found:
        return Additivity.MIXED
    if kind in _REDUCES:
        return _of_reduction(tensor, of_inputs[0])
    if kind in _FUNCTIONS:
        return Additivity.OPAQUE if found <= {Additivity.ROWS, Additivity.OPAQUE} else _MIXED
    if kind == "IdentityN":
        return of_inputs[int(tensor.value_index)]
    if kind in _PASSES:
        return of_inputs[0]
    if kind in _ADDS:
        return _of_sum(found)
    if Additivity.TOTAL in found:
        return Additivity.TOTAL if _scales(operation, of_inputs, row_sums) else _MIXED
    if kind in _MIXES or _mixes_rows(operation, of_inputs):
        return Additivity.MIXED
    return Additivity.OPAQUE if Additivity.OPAQUE in found else Additivity.ROWS


_MIXED = Additivity.MIXED


def _of_sum(found: Iterable[Additivity]) -> Additivity:
    kinds = set(found)
    if len(kinds) == 1:
        return kinds.pop()
    return Additivity.OPAQUE if kinds == {Additivity.OPAQUE, Additivity.ROWS} else _MIXED


def _of_reduction(tensor: Any, of_values: Additivity) -> Additivity:
    operation = tensor.op
    is_linear = operation.type in ("Mean", "Sum")
    if of_values is Additivity.TOTAL:
        return Additivity.TOTAL if is_linear else _MIXED
    values, axes = operation.inputs
    if values.shape.rank and keeps_axis_0(values, axes):
        return of_values
    if not is_linear or (operation.type == "Sum" and tensor.shape.rank != 0):
        return _MIXED  # what is added up of such sums later would be taken for a mean
    return Additivity.TOTAL


def _scales(operation: Any, of_inputs: list[Additivity], row_sums: RowSums) -> bool:
    """Whether an operation multiplies a total, or divides it by what all replicas add up too."""
    if operation.type == "Mul":
        return Additivity.NONE in of_inputs
    if operation.type not in _DIVIDES:
        return False
    return of_inputs[1] is Additivity.NONE or row_sums.divides_by_count(operation)


def _mixes_rows(operation: Any, of_inputs: list[Additivity]) -> bool:
    kind, inputs = operation.type, list(operation.inputs)
    if (axes := _MIXES_LAST_AXES.get(kind)) is not None:
        rank = inputs[0].shape.rank
        return rank is not None and rank <= axes
    first_is_none = of_inputs[0] is Additivity.NONE
    several = sum(one is not Additivity.NONE for one in of_inputs) > 1
    match kind:
        case "MatMul":
            return several or first_is_none or bool(operation.get_attr("transpose_a"))
        case "BatchMatMul" | "BatchMatMulV2" | "BatchMatMulV3":
            return several and any((one.shape.rank or 0) < 3 for one in inputs)
        case "Einsum":
            return _einsum_mixes(operation.get_attr("equation").decode(), of_inputs)
        case "Transpose":
            order = tf.get_static_value(inputs[1])
            return order is None or int(order[0]) != 0
        case "StridedSlice":
            return not takes_all_rows(operation) and not operation.get_attr("ellipsis_mask") & 1
        case "Slice":
            return not slice_takes_all_rows(operation)
        case "GatherV2" | "GatherNd":
            if first_is_none or operation.get_attr("batch_dims"):
                return False
            axis = tf.get_static_value(inputs[2]) if kind == "GatherV2" else 0
            return axis in (0, None) and not is_selection(operation.outputs[0])
        case "Split" | "SplitV":
            axis = tf.get_static_value(inputs[0 if kind == "Split" else 2])
            return axis is None or int(axis) == 0
        case "Cumsum" | "Cumprod" | "CumulativeLogsumexp":
            axis = tf.get_static_value(inputs[1])
            return axis is None or int(axis) % (inputs[0].shape.rank or 1) == 0
        case "ReverseV2":
            axes = tf.get_static_value(inputs[1])
            return axes is None or 0 in {int(axis) for axis in axes}
        case "ReverseSequence":
            return of_inputs[0] is Additivity.ROWS and int(operation.get_attr("seq_dim")) == 0
        case "Pad" | "PadV2" | "MirrorPad":
            margins = tf.get_static_value(inputs[1])
            return margins is not None and bool(margins[0].any())
        case "Unpack":
            return int(operation.get_attr("axis")) % (inputs[0].shape.rank or 1) == 0
        case "Roll":
            axes = tf.get_static_value(inputs[2])
            return axes is None or any(int(axis) % inputs[0].shape.rank == 0 for axis in axes.flat)
    return False


def _einsum_mixes(equation: str, of_inputs: list[Additivity]) -> bool:
    operands, _, output = equation.partition("->")
    first = {
        letters[:1]
        for letters, one in zip(operands.split(","), of_inputs, strict=True)
        if one is not Additivity.NONE
    }
    return first != {output[:1]}
