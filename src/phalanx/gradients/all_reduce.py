"""Add up what the replicas hold, in as few collectives as there are dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from phalanx.gradients.collective_signature import compared
from phalanx.gradients.comm_timer import timed
from phalanx.gradients.reduction_plan import GRADIENTS, note_pieces

Gradient = Any
"""A dense `tf.Tensor`, `tf.IndexedSlices`, or None where a variable has no gradient."""


def reduce_sum(
    values: Sequence[Gradient],
    names: Sequence[str] | None = None,
    *,
    what: str = "a sum",
    in_step: bool = True,
) -> list[Gradient]:
    """The sum over all replicas of each value; call it inside a replica's step.

    Dense tensors travel packed: one flat tensor, and so one all-reduce, per dtype.
    `tf.IndexedSlices` are gathered, rows in the order of the replicas, which is the order
    that one device would have had; None stays None.

    Args:
        values: the same structure on every replica; shapes equal but for the rows of
            IndexedSlices.
        names: a name for each, for the comparison of what workers pass.
        what: what they are together; likewise.
        in_step: whether a training step is under way; likewise.

    Returns:
        The sums, in the order, shapes and dtypes of `values`.
    """
    return all_reduce_packed(values, names, what=what, in_step=in_step).values


@dataclass(frozen=True, kw_only=True)
class PackedGradients:
    """What replicas have added up.

    Attributes:
        values: one for each input.
        buckets: the same numbers in as few tensors as there are.
        inputs: what this replica passed, in tensors like those.
    """

    values: list[Gradient]
    buckets: list[tf.Tensor]
    inputs: list[tf.Tensor]


def all_reduce_packed(
    values: Sequence[Gradient],
    names: Sequence[str] | None = None,
    *,
    what: str = "a sum",
    in_step: bool = True,
) -> PackedGradients:
    """What `reduce_sum` does, for those who look at all values at once."""
    dense = [i for i, value in enumerate(values) if _is_dense(value)]
    sparse = [i for i, value in enumerate(values) if isinstance(value, tf.IndexedSlices)]
    dtypes = dict.fromkeys(values[i].dtype for i in dense)
    groups = [[i for i in dense if values[i].dtype == dtype] for dtype in dtypes]
    inputs = [pack([values[i] for i in group]) for group in groups]
    if what == GRADIENTS:
        note_pieces([*inputs, *(values[i] for i in sparse)])
    with compared(what, values, names, in_step=in_step):
        buckets = [timed(_all_reduce, packed) for packed in inputs]
        gathered = [timed(_all_reduce, values[i]) for i in sparse]
    results: list[Gradient] = list(values)
    for group, flat in zip(groups, buckets, strict=True):
        for i, tensor in zip(group, unpack(flat, [values[i] for i in group]), strict=True):
            results[i] = tensor
    for i, total in zip(sparse, gathered, strict=True):
        results[i] = total
    return PackedGradients(
        values=results,
        buckets=[*buckets, *(total.values for total in gathered)],
        inputs=[*inputs, *(values[i].values for i in sparse)],
    )


def _all_reduce(value: Gradient) -> Gradient:
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value)


def scale(values: Sequence[Gradient], factor: tf.Tensor) -> list[Gradient]:
    """Each value times the scalar `factor`, in the value's own dtype."""
    return [_scale_one(value, factor) for value in values]


def pack(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """The tensors, all of one dtype, as one flat tensor."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)


def unpack(packed: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """What `pack` packed: tensors of the shapes of `like`."""
    sizes = [_size(tensor) for tensor in like]
    pieces = tf.split(packed, sizes, num=len(sizes))
    return [
        tf.reshape(piece, tensor.shape if tensor.shape.is_fully_defined() else tf.shape(tensor))
        for piece, tensor in zip(pieces, like, strict=True)
    ]


def _size(tensor: tf.Tensor) -> Any:
    known = tensor.shape.num_elements()
    return tf.size(tensor) if known is None else known


def _is_dense(value: Gradient) -> bool:
    return value is not None and not isinstance(value, tf.IndexedSlices)


def _scale_one(value: Gradient, factor: tf.Tensor) -> Gradient:
    if value is None:
        return None
    if isinstance(value, tf.IndexedSlices):
        scaled = value.values * tf.cast(factor, value.values.dtype)
        return tf.IndexedSlices(scaled, value.indices, value.dense_shape)
    return value * tf.cast(factor, value.dtype)
