"""Batches that are not divided: their tensors have unlike numbers of rows.

A replica's loss and gradient are weighed by its share of the rows, which must be one number, and
its rows of one tensor must belong to its rows of the others. Of tensors with equally many rows, and
of batches that were zipped, a replica takes its share of each. Elsewhere unlike numbers say that
rows refer to one another: a map has joined the samples of a batch, as graphs to one graph, or a
generator gives a few classes beside many queries. Such a batch is not divided: the first replica
has all of it. The others have no samples and compute the same step without effect, so that the
answer is one device's, and as slow.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Literal

import tensorflow as tf

from phalanx.data.batches import cut, rows_in, static_share, tensors_of, total_rows
from phalanx.data.pushdown import BATCHES, MAPS, OF_BATCHES, is_by_row
from phalanx.distributed.topology import ReplicaTopology, rows_of
from phalanx.keras_compat.dataset_graph import transformations

RowsOfBatches = Literal["equal", "zipped", "unknown"]
"""Whether the tensors of a batch have equally many rows, or are of batches that were zipped."""


def rows_of_batches(dataset: tf.data.Dataset) -> RowsOfBatches:
    """What the steps of a dataset of batches say about the rows of a batch's tensors."""
    step = transformations(dataset)
    while step.kind not in BATCHES:
        if step.kind == "Zip":
            return "zipped"
        if not (step.kind in OF_BATCHES or (step.kind in MAPS and is_by_row(step))):
            return "unknown"
        (step,) = step.inputs
    return "equal"


def is_undivided(data: Any, replicas: int, rows: RowsOfBatches) -> Any:
    """Whether the batch `data` is not divided; scalar bool, of Python where that is known.

    Args:
        data: a global batch.
        replicas: how many there are.
        rows: what is known of its tensors.
    """
    tensors = tensors_of(data)
    if replicas == 1 or rows == "equal" or len(tensors) == 1:
        return False
    known = [one.shape[0] if isinstance(one, tf.Tensor) else None for one in tensors]
    if None not in known:
        return not all(_have_one_share(one, known[0], replicas, rows) for one in known)
    first, *others = (rows_in(one) for one in tensors)
    same = [_have_one_share(one, first, replicas, rows) for one in others]
    return tf.logical_not(tf.reduce_all(same))


def _have_one_share(one: Any, other: Any, replicas: int, rows: RowsOfBatches) -> Any:
    """Whether each replica takes the same share of two numbers of rows: of 60 and 10 two do."""
    if rows != "zipped":
        return one == other
    shares = [
        rows_of(replica, replicas, one)[1] * other == rows_of(replica, replicas, other)[1] * one
        for replica in range(replicas)
    ]
    return tf.reduce_all(shares) if isinstance(one, tf.Tensor) else all(shares)


def divide(
    data: Any,
    topology: ReplicaTopology,
    *,
    undivided: Any = False,
    may_be_empty: bool = True,
    size: int | None = None,
) -> Any:
    """`(total, parts)` of the batch `data`; see `phalanx.data.batches.BatchSource`.

    Args:
        data: `(x,)`, `(x, y)` or `(x, y, sample_weight)` of tensors with rows along axis 0.
        topology: this process's replicas.
        undivided: what `is_undivided` says of it.
        may_be_empty: whether a replica can be without rows.
        size: rows of every global batch, where they are known and equal.
    """
    parts = tuple(
        cut(
            data,
            replica,
            topology.total,
            may_be_empty=may_be_empty,
            static=static_share(size, replica, topology.total),
            undivided=undivided,
        )
        for replica in range(topology.first, topology.first + topology.local)
    )
    return total_rows(data), parts


_WARNING = (
    "The tensors of a batch have unlike numbers of rows, so it is not divided: the result is one "
    "device's, but more workers are not faster. To divide such batches, join their samples in the "
    "model; or zip datasets of batches whose sizes are multiples of the number of workers, and map "
    "them before."
)


@functools.cache
def warn_of_undivided() -> None:
    """Say once that a batch is not divided."""
    logging.getLogger("phalanx").warning(_WARNING)


_opened: set[str] = set()


def is_first_pass(spec: Any) -> bool:
    """Whether this process opens data of this `spec` for the first time: training, validation."""
    is_first = repr(spec) not in _opened
    _opened.add(repr(spec))
    return is_first


def print_if_undivided(undivided: Any, place: tf.Tensor) -> None:
    """Say it while a pipeline runs, where that is known then only: of a pass's first batch.

    Args:
        undivided: what `is_undivided` says of the batch.
        place: the batch's place in the pass.
    """
    if undivided is True:
        warn_of_undivided()
    elif undivided is not False:
        is_printed = tf.logical_and(undivided, place == 0)
        tf.cond(is_printed, lambda: tf.print("phalanx:", _WARNING), tf.no_op)
