"""Constants with a row for each sample of the global batch, where they meet a replica's rows.

`loss(tf.ones((BATCH, 1)), model(x))`: on one device the constant has a row for each of the batch. A
replica holds fewer, so it takes its part of the constant. Which constants these are, the operation
says that combines them with rows of the batch: each entry with that of the same place, as sums,
products, losses and concatenations along another axis do. On one device both have equally many
rows, so what is the same on all replicas and has a fixed number of rows has those of the batch. A
recurrent layer's initial state is such a constant too.

`FuncGraph._create_op_internal`, which every operation of a graph passes, is no public API; guarded
by tests/replicas/test_canaries.py.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from phalanx.gradients.gathered_batch import own_rows
from phalanx.gradients.replica_batch import FindBatch, ReplicaBatch
from phalanx.keras_compat.global_values import has_all_rows, is_same_on_all
from phalanx.keras_compat.row_products import with_all_rows_of_products

FUNC_GRAPH: Any = importlib.import_module("tensorflow.python.framework.func_graph").FuncGraph
"""The class of the graph of what `tf.function` traces."""

_EACH_ENTRY = frozenset(
    """
Add AddN AddV2 Atan2 BatchMatMulV2 BatchMatMulV3 BitwiseAnd BitwiseOr BitwiseXor Div DivNoNan Equal
FloorDiv FloorMod Greater GreaterEqual Less LessEqual LogicalAnd LogicalOr Maximum Minimum Mul
MulNoNan NotEqual Pow RealDiv Select SelectV2 SoftmaxCrossEntropyWithLogits SquaredDifference Sub
Xdivy Xlog1py Xlogy
""".split()  # noqa: SIM905 - as a list it would be forty lines
)
"""Operations that combine entries at the same place of tensors of one rank."""


def with_rows_of_constants(original: Callable[..., Any], find: FindBatch) -> Callable[..., Any]:
    """A replacement for `FuncGraph._create_op_internal`.

    It gives products their rows, too: see `keras_compat.row_products`.

    Args:
        original: the method.
        find: gives the share of the replica.
    """

    @functools.wraps(original)
    def create(
        self: Any,
        op_type: str,
        inputs: Sequence[Any],
        dtypes: Any = None,
        input_types: Any = None,
        name: Any = None,
        attrs: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        places = _beside(op_type, inputs, attrs or {})
        beside = [inputs[i] for i in places]
        if _differ_in_rows(beside) and (replica_batch := find()) is not None:
            own = dict(zip(places, _cut(replica_batch, beside), strict=True))
            inputs = [own.get(i, one) for i, one in enumerate(inputs)]
        inputs = with_all_rows_of_products(op_type, inputs, attrs, find)
        return original(self, op_type, inputs, dtypes, input_types, name, attrs, *args, **kwargs)

    return create


def own_rows_of_state(replica_batch: ReplicaBatch, sequences: Any, state: Any) -> Any:
    """The initial state that a recurrent layer is given, with this replica's rows of constants."""
    states = keras.tree.flatten(state)
    together = [*keras.tree.flatten(sequences), *states]
    if not all(isinstance(one, tf.Tensor) for one in together) or not _differ_in_rows(together):
        return state
    return keras.tree.pack_sequence_as(state, _cut(replica_batch, together)[-len(states) :])


def _cut(replica_batch: ReplicaBatch, tensors: Sequence[Any]) -> Sequence[Any]:
    """Tensors that belong together by axis 0, of constants this replica's rows."""
    own = next((one for one in tensors if has_all_rows(replica_batch, one)), None)
    if own is None:
        return tensors
    rows = own.shape[0]
    return [
        own_rows(one, replica_batch)
        if _rows(one) not in (None, 1, rows) and is_same_on_all(replica_batch, one)
        else one
        for one in tensors
    ]


def _beside(op_type: str, inputs: Sequence[Any], attrs: Any) -> Sequence[int]:
    """The inputs of an operation whose entries along axis 0 belong together."""
    if op_type in _EACH_ENTRY:
        ranks = [one.shape.rank for one in inputs]
        if None in ranks or max(ranks) < (3 if op_type.startswith("BatchMatMul") else 1):
            return ()
        return [i for i, rank in enumerate(ranks) if rank == max(ranks)]
    if op_type == "SparseSoftmaxCrossEntropyWithLogits":
        return (0, 1)
    if op_type == "ConcatV2":
        axis = tf.get_static_value(inputs[-1])
        is_beside = axis is not None and int(axis) % (inputs[0].shape.rank or 1) != 0
        return range(len(inputs) - 1) if is_beside else ()
    if op_type == "Pack":
        is_beside = attrs["axis"].i % ((inputs[0].shape.rank or 0) + 1) != 0
        return range(len(inputs)) if is_beside and inputs[0].shape.rank else ()
    return ()


def _differ_in_rows(tensors: Sequence[Any]) -> bool:
    """Whether the numbers of rows that are known do not say that all have equally many."""
    numbers = {_rows(one) for one in tensors} - {1}
    return len(numbers) > 1


def _rows(tensor: Any) -> Any:
    return tensor.shape[0] if tensor.shape.rank else None
