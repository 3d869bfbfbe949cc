"""Add up what the replicas hold, packed into few tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from phalanx.cluster.reduce_options import ReduceOptions
from phalanx.distributed.collectives import Collectives
from phalanx.gradients.buckets import plan_buckets
from phalanx.gradients.collective_signature import compared
from phalanx.gradients.comm_timer import timed_together
from phalanx.gradients.reduced_dtype import (
    gather_reduced,
    is_reduced,
    size_in_transit,
    sum_reduced,
)
from phalanx.gradients.sparse_rows import Travel, sum_rows
from phalanx.gradients.step_context import current_replica_batch
from phalanx.monitoring.events import ReductionPlan

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
class Reduction:
    """How gradients are added up between workers.

    Attributes:
        collectives: how workers exchange tensors.
        options: in which pieces and in which dtype.
        travels: by place among the values, how sparse gradients travel; "rows" for others.
        record: is given the plan when it is made; None where it is not recorded.
    """

    collectives: Collectives
    options: ReduceOptions
    travels: Mapping[int, Travel] = field(default_factory=dict)
    record: Callable[[ReductionPlan], None] | None = None


@dataclass(frozen=True, kw_only=True)
class PackedGradients:
    """What replicas have added up.

    Attributes:
        values: one for each input.
        buckets: the same numbers in as few tensors as there are.
        inputs: what this replica passed, in tensors like those.
        is_split: whether dense values of one dtype travelled in several pieces.
    """

    values: list[Gradient]
    buckets: list[tf.Tensor]
    inputs: list[tf.Tensor]
    is_split: bool


def all_reduce_packed(
    values: Sequence[Gradient],
    names: Sequence[str] | None = None,
    *,
    what: str = "a sum",
    in_step: bool = True,
    reduction: Reduction | None = None,
) -> PackedGradients:
    """What `reduce_sum` does, for those who look at all values at once.

    Args:
        values: as `reduce_sum` takes them.
        names: likewise.
        what: likewise.
        in_step: likewise.
        reduction: in which pieces and in which dtype they travel; None for one piece a dtype, in
            that dtype.
    """
    dense = [i for i, value in enumerate(values) if _is_dense(value)]
    sparse = [i for i, value in enumerate(values) if isinstance(value, tf.IndexedSlices)]
    groups = _groups(values, dense, reduction)
    packed = [pack([values[i] for i in group]) for group in groups]
    # Collectives run in the order in which they are traced: the first to be ready goes first.
    pieces = sorted(
        [(group, one) for group, one in zip(groups, packed, strict=True)]
        + [([i], values[i]) for i in sparse],
        key=lambda piece: -min(piece[0]),
    )
    with compared(what, values, names, in_step=in_step):
        totals = timed_together(lambda piece: _all_reduce(*piece, reduction), pieces)
    if reduction is not None and reduction.record is not None:
        reduction.record(_plan(values, names, groups, reduction))
    results: list[Gradient] = list(values)
    for (group, _), total in zip(pieces, totals, strict=True):
        if isinstance(total, tf.IndexedSlices):
            results[group[0]] = total
            continue
        for i, tensor in zip(group, unpack(total, [values[i] for i in group]), strict=True):
            results[i] = tensor
    if (replica_batch := current_replica_batch()) is not None:
        for total in results:
            replica_batch.record_total(total)
    return PackedGradients(
        values=results,
        buckets=[_entries(total) for total in totals],
        inputs=[_entries(piece) for _, piece in pieces],
        is_split=len(groups) > len({values[i].dtype for i in dense}),
    )


def _groups(
    values: Sequence[Gradient], dense: list[int], reduction: Reduction | None
) -> list[list[int]]:
    """The places of the dense values of each bucket."""
    options = ReduceOptions(bucket_mb=0) if reduction is None else reduction.options
    planned = plan_buckets(
        [values[i] for i in dense],
        bucket_mb=options.bucket_mb,
        size_of=lambda dtype: size_in_transit(dtype, options.reduce_dtype),
    )
    return [[dense[i] for i in bucket] for bucket in planned]


def _plan(
    values: Sequence[Gradient],
    names: Sequence[str] | None,
    groups: list[list[int]],
    reduction: Reduction,
) -> ReductionPlan:
    reduce_dtype = reduction.options.reduce_dtype
    buckets: list[dict[str, Any]] = []
    for group in groups:
        dtype = values[group[0]].dtype
        entries = [values[i].shape.num_elements() or 0 for i in group]
        reduced = is_reduced(dtype, reduce_dtype)
        size = size_in_transit(dtype, reduce_dtype)
        name = reduce_dtype if reduced else dtype.name
        buckets.append({"dtype": name, "bytes": sum(entries) * size, "tensors": len(group)})
    sparse = [
        {"variable": names[i] if names else str(i), "travels": travel}
        for i, travel in sorted(reduction.travels.items())
    ]
    return ReductionPlan(
        replicas=reduction.collectives.size,
        reduce_dtype=reduce_dtype,
        bytes=sum(bucket["bytes"] for bucket in buckets),
        buckets=tuple(buckets),
        sparse=tuple(sparse),
    )


def _all_reduce(places: list[int], value: Gradient, reduction: Reduction | None) -> Gradient:
    reduce_dtype = None if reduction is None else reduction.options.reduce_dtype
    if reduction is not None and reduction.travels.get(places[0]) == "summed_rows":
        return sum_rows(value, reduction.collectives, reduce_dtype)
    if reduction is not None and reduce_dtype is not None and is_reduced(value.dtype, reduce_dtype):
        if isinstance(value, tf.IndexedSlices):
            return gather_reduced(value, reduction.collectives, reduce_dtype)
        return sum_reduced(value, reduction.collectives, reduce_dtype)
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value)


def _entries(value: Gradient) -> tf.Tensor:
    return value.values if isinstance(value, tf.IndexedSlices) else value


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
