"""How the tensors of a replica's step depend on the rows of the batch.

The graph of the step says it: something for each row on its own, a sum or a mean over rows, or
what combines rows in another way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from phalanx.gradients.additivity import Additivity, additivity_of_operation
from phalanx.gradients.axis_sizes import key_of
from phalanx.gradients.graph_walk import judged
from phalanx.gradients.origin_of_rows import (
    keeps_rows,
    origin_of_rows,
    slice_takes_all_rows,
    takes_all_rows,
)
from phalanx.gradients.replica_batch import ReplicaBatch

SHAPES = ("Shape", "ShapeN", "Size")
"""Operations that give the sizes of a tensor."""
_SPLITS_ROWS = (
    "RaggedGather", "RaggedRange", "StringNGrams", "StringSplit", "StringSplitV2",
    "UnicodeDecode", "UnicodeDecodeWithOffsets",
)  # fmt: skip
"""Operations that make any number of entries of each row: the values of a ragged tensor."""
_SEGMENTS = re.compile(r"(Unsorted)?Segment(Max|Mean|Min|Prod|Sum)(V2)?")


class RowDependence:
    """How each tensor of one replica's step depends on its rows."""

    def __init__(self, replica_batch: ReplicaBatch) -> None:
        """Read the step that `replica_batch` belongs to."""
        self._batch = replica_batch
        self._kinds: dict[tuple[int, str], Additivity] = {}
        self._split: dict[tuple[int, str], bool] = {}

    def kind(self, tensor: Any) -> Additivity:
        """How a symbolic tensor depends on the rows; `ROWS` has them along axis 0."""
        return judged(tensor, self._kinds, self._judge)

    @property
    def _rows(self) -> Any:
        return self._batch.row_sums  # another one once the step's data is known

    def take_for_rows(self, tensor: Any) -> None:
        """Have something for each row in a tensor from now on, whatever its operation is."""
        self._kinds[key_of(tensor)] = Additivity.ROWS

    def is_mean(self, tensor: Any) -> bool:
        """Whether a symbolic tensor is known as a mean over rows, as a compiled loss is."""
        return tensor.shape.rank == 0 and bool(self._rows.is_mean(tensor))

    def has_all_rows(self, values: Any) -> bool:
        """Whether a tensor has this replica's rows along axis 0, and none is left out."""
        is_of_rows = bool(values.shape.rank) and self.kind(values) is Additivity.ROWS
        return is_of_rows and not self.is_selected(values)

    def is_selected(self, values: Any) -> bool:
        """Whether a tensor has the rows that a mask selects, or several entries for each row.

        How many each replica has is not known, so they are made again, of all rows.
        """
        is_number = origin_of_rows(values).type == "Where"
        return bool(is_number or self._rows.selects(values)) or self.is_split(values)

    def is_split(self, values: Any) -> bool:
        """Whether axis 0 of a tensor has the entries that an operation made of each row.

        Ragged tensors have such values: the words of each row's text.
        """

        def judge(tensor: Any, of_inputs: list[bool]) -> bool:
            operation = tensor.op
            if not tensor.shape.rank or tensor.shape[0] is not None:
                return False
            if self._rows.is_entries_of_batch(tensor):
                return True
            if operation.type in _SPLITS_ROWS:
                return bool(self._rows.may_differ(tensor))
            if self._entries_in_rows(operation):
                return False
            is_by_entry = self.kind(tensor) is Additivity.ROWS
            return any(
                is_split and one.shape[0] is None and (is_by_entry or keeps_rows(operation, one))
                for one, is_split in zip(operation.inputs, of_inputs, strict=True)
            )

        return judged(values, self._split, judge)

    def _entries_in_rows(self, operation: Any) -> Sequence[int]:
        """The inputs that an operation puts together to rows, where these are each row's entries.

        Empty where it does something else.
        """
        inputs = operation.inputs
        places: tuple[int, ...] = (0,)
        match operation.type:
            case "RaggedTensorToTensor":
                places = (1,)
            case "SparseTensorDenseMatMul" if not operation.get_attr("adjoint_a"):
                places = (0, 1, 3)
            case "SparseToDense":
                places = (0, 2)
            case kind if _SEGMENTS.fullmatch(kind):
                is_of_row = is_row_of_entry(inputs[1]) and not self._has_whole_rows(inputs[0])
                return places if is_of_row else ()
            case _:
                return ()
        return places if self.is_split(inputs[places[0]]) else ()

    def _has_whole_rows(self, values: Any) -> bool:
        """Whether axis 0 of a tensor has rows of the batch, rather than entries or constants."""
        return self.kind(values) is not Additivity.NONE and not self.is_split(values)

    def has_row_for_each(self, values: Any) -> bool:
        """Whether a tensor that combines rows has one, or several, for each row of the batch.

        Mixup has: it adds rows in another order. A slice has not, `x[: n // 2]`, unless the step
        puts the slices together again.
        """

        def judge(tensor: Any, of_inputs: list[bool]) -> bool:
            if self.kind(tensor) is not Additivity.MIXED:
                return not self.is_selected(tensor)
            return self._inputs_with_rows(tensor) is not None and all(of_inputs)

        return judged(values, {}, judge, inputs_of=self._inputs_with_rows)

    def _inputs_with_rows(self, tensor: Any) -> Sequence[Any] | None:
        """Of what a tensor takes its rows, if it combines rows; None where it leaves some out."""
        if self.kind(tensor) is not Additivity.MIXED:
            return ()
        operation = tensor.op
        if self._entries_in_rows(operation):
            return ()
        inputs = [one for one in operation.inputs if one.shape.rank and one.shape[0] is None]
        match operation.type:
            case "StridedSlice" if not takes_all_rows(operation) and not _reverses_rows(operation):
                return None
            case "Slice" if not slice_takes_all_rows(operation):
                return None
            case "Split" | "SplitV" | "Unpack" | "DynamicPartition":
                return None
            case "GatherV2" if not operation.get_attr("batch_dims"):
                return [operation.inputs[1]]
            case "ConcatV2" if _is_put_together_again(inputs):
                return [inputs[0].op.inputs[0]]
            case "MatMul":
                return inputs[:1]
        return inputs

    def _judge(self, tensor: Any, of_inputs: list[Additivity]) -> Additivity:
        if self._rows.is_row_of_batch(tensor) or self._rows.is_entries_of_batch(tensor):
            return Additivity.ROWS
        if not of_inputs or tensor.op.type in SHAPES or not self._rows.may_differ(tensor):
            return Additivity.NONE
        if self._batch.is_own(tensor):
            return Additivity.NONE
        if self._puts_counted_together(tensor, of_inputs):
            return Additivity.MIXED
        if tensor.op.type == "Range":  # the rows' numbers, which begin at 0 on each replica
            return Additivity.MIXED
        if self._picks_from_each_row(tensor):
            return of_inputs[0]
        if places := self._entries_in_rows(tensor.op):
            is_mixed = any(of_inputs[place] is Additivity.MIXED for place in places)
            return Additivity.MIXED if is_mixed else Additivity.ROWS
        if self._stacks_rows_beside(tensor):
            return Additivity.ROWS
        if self.is_mean(tensor):
            return Additivity.MIXED if Additivity.MIXED in of_inputs else Additivity.TOTAL
        if _sums_broadcast(tensor):
            return of_inputs[0]
        has_rows = Additivity.ROWS in of_inputs
        if has_rows and (_reorders(tensor) or self._is_of_count(tensor, of_inputs)):
            return Additivity.MIXED
        if _has_rows_elsewhere(tensor, of_inputs):
            found = Additivity.OPAQUE
        else:
            found = additivity_of_operation(tensor, of_inputs, self._rows)
        if found is Additivity.OPAQUE and may_be_rows(tensor):
            return Additivity.ROWS
        if found is Additivity.ROWS and not self._may_have_rows(tensor.shape):
            return Additivity.MIXED
        return found

    def _may_have_rows(self, shape: Any) -> bool:
        """Whether axis 0 of a shape can be that of this replica's rows."""
        sizes = (None, 1, self._batch.static_count)
        return shape.rank is None or (shape.rank > 0 and shape[0] in sizes)

    def _puts_counted_together(self, tensor: Any, of_inputs: list[Additivity]) -> bool:
        """Whether entries of a number that the replica's rows decide are put together by axis 0.

        They have no data: `tf.concat([tf.ones((n, 1)), tf.zeros((n, 1))], 0)`.
        """
        is_constant = set(of_inputs) == {Additivity.NONE}
        is_counted = bool(tensor.shape.rank) and tensor.shape[0] is None
        return is_constant and is_counted and tensor.op.type == "ConcatV2" and _reorders(tensor)

    def _picks_from_each_row(self, tensor: Any) -> bool:
        """Whether `tf.gather_nd` takes something of each row: by its number and other indices."""
        indices = tensor.op.inputs[1].op if tensor.op.type == "GatherNd" else None
        if indices is None or indices.type not in ("ConcatV2", "Pack"):
            return False
        numbers, *others = list(indices.inputs)[: -1 if indices.type == "ConcatV2" else None]
        known = {self._kinds.get(key_of(one)) for one in others}
        return known <= {Additivity.NONE, Additivity.ROWS} and is_number_of_row(numbers)

    def _stacks_rows_beside(self, tensor: Any) -> bool:
        """Whether rows are stacked along axis 0, which is then exchanged with that of the rows."""
        stack = tensor.op.inputs[0].op if tensor.op.type == "Transpose" else None
        if stack is None or stack.type != "Pack" or stack.get_attr("axis") != 0:
            return False
        order = tf.get_static_value(tensor.op.inputs[1])
        known = {self._kinds.get(key_of(one)) for one in stack.inputs}
        return order is not None and int(order[0]) == 1 and known == {Additivity.ROWS}

    def _is_of_count(self, tensor: Any, of_inputs: list[Additivity]) -> bool:
        """Whether rows are combined with a number that the replica's number of rows decides."""
        inputs = tensor.op.inputs
        return any(
            kind is Additivity.NONE
            and (one.shape.rank == 0 or one.shape[0] == 1)
            and one.dtype.is_floating
            and self._rows.may_differ(one)
            for one, kind in zip(inputs, of_inputs, strict=True)
        )


def may_be_rows(tensor: Any) -> bool:
    """Whether axis 0 of a tensor is the only one whose size is unknown."""
    shape = tensor.shape
    return bool(shape.rank) and shape[0] is None and shape[1:].is_fully_defined()


def is_number_of_row(tensor: Any) -> bool:
    """Whether a tensor has along axis 0 the number of the row, and the same along other axes."""
    while not _reorders(tensor):
        operation = tensor.op
        match operation.type:
            case "Range":
                start, _, step = map(tf.get_static_value, operation.inputs)
                return bool(start == 0 and step == 1)
            case "BroadcastTo" if tensor.shape.rank != operation.inputs[0].shape.rank:
                return False  # the numbers are along a later axis then
            case "Reshape" if any(size != 1 for size in tensor.shape[1:]):
                return False
            case "StridedSlice" if not takes_all_rows(operation):
                return False
            case "BroadcastTo" | "Cast" | "ExpandDims" | "Reshape" | "StridedSlice" | "Tile":
                tensor = operation.inputs[0]
            case _:
                return False
    return False


def is_row_of_entry(tensor: Any) -> bool:
    """Whether a vector has the number of its row for each entry of a ragged tensor."""
    while tensor.op.type in ("Cast", "Identity"):
        tensor = tensor.op.inputs[0]
    operation = tensor.op
    if "RaggedSplitsToSegmentIds/" in operation.name:  # a scope of TensorFlow's
        return True
    if operation.type != "StridedSlice" or not takes_all_rows(operation):
        return False
    indices, begin = operation.inputs[:2]
    column = tf.get_static_value(begin)
    is_first = column is not None and len(column) == 2 and column[1] == 0
    is_split = indices.op.type in ("StringSplit", "StringSplitV2") and indices.value_index == 0
    return bool(is_first and is_split and operation.get_attr("shrink_axis_mask") == 2)


def _has_rows_elsewhere(tensor: Any, of_inputs: list[Additivity]) -> bool:
    """Whether an operation turns rows to another axis or takes of such, as recurrent layers do."""
    operation = tensor.op
    values = operation.inputs[0]
    match operation.type:
        case "Transpose":
            order = tf.get_static_value(operation.inputs[1])
            is_turned = (values.shape.rank or 0) > 2 and order is not None and int(order[0]) != 0
            return is_turned and of_inputs[0] in (Additivity.ROWS, Additivity.OPAQUE)
        case "StridedSlice" | "ReverseV2":
            return of_inputs[0] is Additivity.OPAQUE
    return False


def _sums_broadcast(tensor: Any) -> bool:
    """Whether an operation takes back a broadcast in a gradient, which leaves rows as they are."""
    operation = tensor.op
    is_sum = operation.type == "Sum" and operation.inputs[1].op.type == "BroadcastGradientArgs"
    return bool(is_sum and tensor.shape.rank != 0)


def _reorders(tensor: Any) -> bool:
    """Whether axis 0 is no more the rows of one batch, in their order."""
    operation = tensor.op
    match operation.type:
        case "ConcatV2":
            axis = tf.get_static_value(operation.inputs[-1])
            return axis is None or int(axis) % (tensor.shape.rank or 1) == 0
        case "Pack":
            return int(operation.get_attr("axis")) % (tensor.shape.rank or 1) == 0
        case "ExpandDims":
            axis = tf.get_static_value(operation.inputs[1])
            return axis is None or int(axis) % (tensor.shape.rank or 1) == 0
        case "Tile":
            multiples = tf.get_static_value(operation.inputs[1])
            return multiples is None or int(multiples[0]) != 1
        case "Reshape":
            rows = operation.inputs[0].shape[0] if operation.inputs[0].shape.rank else 1
            if not tensor.shape.rank or (tensor.shape[0] is not None and rows is None):
                return True
            return not _begins_with_rows(operation.inputs[1])
    return False


def _reverses_rows(strided_slice: Any) -> bool:
    """Whether a slice takes all of axis 0 from its end on, by `[::-1]`."""
    strides = tf.get_static_value(strided_slice.inputs[3])
    keeps_all = strided_slice.get_attr("begin_mask") & strided_slice.get_attr("end_mask") & 1
    return bool(keeps_all and strides is not None and strides[0] == -1)


def _is_put_together_again(parts: Sequence[Any]) -> bool:
    """Whether tensors are two slices of one tensor of which one begins where the other ends."""
    slices = [one.op for one in parts if one.op.type == "StridedSlice"]
    if not len(slices) == len(parts) == 2 or len({key_of(one.inputs[0]) for one in slices}) != 1:
        return False
    first, second = (
        [one for one in slices if one.get_attr(f"{side}_mask") & 1] for side in ("begin", "end")
    )
    return len(first) == len(second) == 1 and _same_place(first[0].inputs[2], second[0].inputs[1])


def _same_place(one: Any, other: Any) -> bool:
    """Whether two vectors of places are known to begin with the same number."""
    while one.op.type == other.op.type == "Pack":
        one, other = one.op.inputs[0], other.op.inputs[0]
    values = tf.get_static_value(one), tf.get_static_value(other)
    if None not in values:
        return bool(values[0].reshape(-1)[0] == values[1].reshape(-1)[0])
    return bool(key_of(one) == key_of(other))


def _begins_with_rows(shape: Any) -> bool:
    """Whether the first entry of a shape is -1, a number, or taken of the shape of a tensor."""
    while tf.is_symbolic_tensor(shape):
        known = tf.get_static_value(shape, partial=True)
        if known is not None and known[0] is not None:
            return True
        operation = shape.op
        match operation.type:
            case "Shape" | "ShapeN" | "DynamicStitch":  # the last: in gradients of reductions
                return True
            case "Pack":
                return bool(operation.inputs[0].op.type != "Const")
            case "Cast" | "ConcatV2" | "Identity":
                shape = operation.inputs[0]
            case "StridedSlice" | "GatherV2":
                first = tf.get_static_value(operation.inputs[1])
                if first is None or first.reshape(-1)[:1].any():
                    return False
                shape = operation.inputs[0]
            case _:
                return False
    return True
