"""Products that add up over the rows of the batch, as those with the adjacency matrix of a graph.

`tf.matmul(adjacency, x)`, where the samples of a batch are the nodes of a graph: row i of the
adjacency matrix says which of *all* rows of x add up to row i. Of the matrix, a replica has its
rows, or the script has it as a constant; the columns are those of the global batch. So x is
gathered, and each replica computes its rows of the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from phalanx.gradients.gathered_batch import all_gather_batch, own_rows
from phalanx.gradients.replica_batch import FindBatch, ReplicaBatch
from phalanx.keras_compat.global_values import has_all_rows, is_same_on_all
from phalanx.keras_compat.optimizer_patches import adds_up


def with_all_rows_of_products(
    op_type: str, inputs: Sequence[Any], attrs: Any, find: FindBatch
) -> Sequence[Any]:
    """The inputs of an operation; of a product over the rows of the batch, all rows.

    Args:
        op_type: of the operation.
        inputs: its inputs.
        attrs: its attributes.
        find: gives the share of the replica.
    """
    if op_type == "MatMul":
        return _dense(inputs, attrs, find)
    if op_type == "SparseTensorDenseMatMul" and not (attrs["adjoint_a"].b or attrs["adjoint_b"].b):
        return _sparse(inputs, find)
    return inputs


def _dense(inputs: Sequence[Any], attrs: Any, find: FindBatch) -> Sequence[Any]:
    matrix, values = inputs
    if attrs["transpose_b"].b or matrix.shape.rank != 2 or values.shape.rank != 2:
        return inputs
    columns = matrix.shape[0 if attrs["transpose_a"].b else 1]
    if columns is None or columns == values.shape[0]:  # its columns are not known to be others
        return inputs
    replica_batch = _found_with_rows(values, find)
    if replica_batch is None:
        return inputs
    is_square = matrix.shape[0] == matrix.shape[1] and not attrs["transpose_a"].b
    if is_square and is_same_on_all(replica_batch, matrix):  # a row for each of the batch
        matrix = own_rows(matrix, replica_batch)
    return [matrix, all_gather_batch(values)]


def _sparse(inputs: Sequence[Any], find: FindBatch) -> Sequence[Any]:
    indices, entries, shape, values = inputs
    replica_batch = _found_with_rows(values, find)
    if replica_batch is None:
        return inputs
    known = tf.get_static_value(shape)
    if is_same_on_all(replica_batch, indices) and known is not None:
        if known[0] == known[1]:
            indices, entries, shape = _own_rows_of_sparse(inputs, replica_batch)
    elif not replica_batch.row_sums.is_entries_of_batch(indices):
        return inputs
    return [indices, entries, shape, all_gather_batch(values)]


def _own_rows_of_sparse(inputs: Sequence[Any], replica_batch: ReplicaBatch) -> Sequence[Any]:
    whole = tf.SparseTensor(*inputs[:3])
    start, rows = (tf.cast(n, tf.int64) for n in (replica_batch.start, replica_batch.own_rows))
    own = tf.sparse.slice(whole, tf.stack([start, 0]), tf.stack([rows, whole.dense_shape[1]]))
    return own.indices, own.values, own.dense_shape


def _found_with_rows(values: Any, find: FindBatch) -> ReplicaBatch | None:
    """The share of the replica, where `values` has its rows and replicas add up."""
    replica_batch = find()
    is_found = replica_batch is not None and adds_up() and has_all_rows(replica_batch, values)
    return replica_batch if is_found else None
