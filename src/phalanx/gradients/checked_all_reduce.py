"""Add up gradients, and check whether the total is finite.

The total is the same on every replica, so all know of it, and it alone is looked at. Which replica
it came from each asks of its own gradients, and only then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import tensorflow as tf

from phalanx.gradients.all_reduce import Gradient, Reduction, all_reduce_packed
from phalanx.gradients.reduced_dtype import largest_summand

_NAME = "whether the losses are finite"

Own = tuple[tf.Tensor, tf.Tensor]
"""Of a replica's own gradients, scalar bools: whether they were not finite; whether the total can
be so by them, by overflow in the sum too."""


@dataclass(frozen=True, kw_only=True)
class ReducedGradients:
    """Gradients that are added up.

    Attributes:
        total: one per variable, None where there is none.
        finite: whether all is finite, scalar bool.
        own: looks at what this replica passed, which stays in memory until it is known whether
            that is needed; for a branch that is hardly ever taken.
    """

    total: list[Gradient]
    finite: tf.Tensor
    own: Callable[[], Own]


def all_reduce_and_check(
    gradients: Sequence[Gradient],
    names: Sequence[str],
    *,
    replicas: int,
    reduction: Reduction | None = None,
) -> ReducedGradients:
    """The sum of `gradients` over all replicas, which is looked at.

    Args:
        gradients: this replica's.
        names: one for each.
        replicas: how many there are.
        reduction: as `all_reduce_packed` takes it.
    """
    if replicas == 1:
        alone = list(gradients)
        return ReducedGradients(
            total=alone, finite=are_finite(alone), own=lambda: _both(tf.constant(True))
        )
    sums = all_reduce_packed(gradients, names, what="gradients", reduction=reduction)
    limit = None
    if reduction is not None:
        limit = largest_summand(reduction.collectives, reduction.options.reduce_dtype)
    if sums.is_split:
        # Looked at before they travel, so that the memory of a bucket is free as soon as it has.
        largest = [_largest_entry(one) for one in sums.inputs]
        own = partial(_inspected, largest, replicas, limit)
    else:
        own = partial(_inspected, sums.inputs, replicas, limit)
    return ReducedGradients(total=sums.values, finite=are_finite(sums.buckets), own=own)


def all_reduce_with_loss_flag(
    gradients: Sequence[Gradient],
    names: Sequence[str],
    loss: tf.Tensor,
    *,
    replicas: int,
    reduction: Reduction | None = None,
) -> ReducedGradients:
    """The same where the loss of each replica is looked at, and not the gradients.

    Args:
        gradients: this replica's.
        names: one for each.
        loss: this replica's, scalar; that it is not finite travels with the gradients.
        replicas: how many there are.
        reduction: as `all_reduce_packed` takes it.
    """
    is_bad = ~tf.math.is_finite(loss)
    if replicas == 1:
        return ReducedGradients(total=list(gradients), finite=~is_bad, own=lambda: _both(is_bad))
    # NaN and 0 stay what they are in every dtype in which gradients travel.
    flag = tf.where(is_bad, tf.constant(math.nan), tf.constant(0.0))
    *total, sums = all_reduce_packed(
        [*gradients, flag], [*names, _NAME], what="gradients", reduction=reduction
    ).values
    return ReducedGradients(total=total, finite=tf.math.is_finite(sums), own=lambda: _both(is_bad))


def _largest_entry(tensor: tf.Tensor) -> tf.Tensor:
    """The largest absolute value, scalar, at least 0; not finite where an entry is not."""
    return tf.maximum(tf.reduce_max(tf.abs(tensor)), tf.zeros([], tensor.dtype))


def _inspected(tensors: Sequence[tf.Tensor], replicas: int, limit: float | None) -> Own:
    return ~each_is_finite(tensors), can_overflow(tensors, replicas, limit)


def _both(is_bad: tf.Tensor) -> Own:
    return is_bad, is_bad


def are_finite(gradients: Sequence[Gradient]) -> tf.Tensor:
    """Whether every entry of all `gradients` is finite, scalar bool.

    A sum of squares that float32 can hold says so in one pass and without memory of its own. Where
    entries are beyond 1e19 it cannot, and each is looked at.
    """
    present = [_values(g) for g in gradients if g is not None]
    if not present:
        return tf.constant(True)
    squares = tf.add_n([tf.cast(tf.nn.l2_loss(_wide(g)), tf.float32) for g in present])
    return tf.cond(
        tf.math.is_finite(squares),
        lambda: tf.constant(True),
        cold_branch(lambda: each_is_finite(present)),
    )


def each_is_finite(gradients: Sequence[Gradient]) -> tf.Tensor:
    """The same, entry by entry: for branches that are hardly ever taken."""
    return tf.reduce_all([_one_is_finite(g) for g in gradients])


def can_overflow(
    gradients: Sequence[Gradient], replicas: int, limit: float | None = None
) -> tf.Tensor:
    """Whether a sum over `replicas` could overflow by these gradients, scalar bool.

    So it does where they are not finite, and where an entry has more than half of its share of the
    largest number; half, since sums are rounded. Where no replica has such an entry, no sum
    overflows.

    Args:
        gradients: a replica's own.
        replicas: how many there are.
        limit: the largest entry that may be sent, where that is less.
    """
    present = [_values(g) for g in gradients if g is not None]
    most = math.inf if limit is None else limit / 2
    fine = [
        tf.reduce_all(tf.abs(g) <= min(float(g.dtype.max) / (2 * replicas), most)) for g in present
    ]
    return ~tf.reduce_all(fine)


def nonfinite_flags(gradients: Sequence[Gradient]) -> tf.Tensor:
    """For each gradient whether it has a NaN or infinite entry, as int32."""
    return tf.cast(~tf.stack([_one_is_finite(g) for g in gradients]), tf.int32)


def without_nonfinite(gradients: Sequence[Gradient]) -> list[Gradient]:
    """The gradients with 0 for every NaN or infinite entry."""
    return [_zeroed(g) for g in gradients]


def _one_is_finite(gradient: Gradient) -> tf.Tensor:
    if gradient is None:
        return tf.constant(True)
    return tf.reduce_all(tf.math.is_finite(_values(gradient)))


def _wide(values: tf.Tensor) -> tf.Tensor:
    """Values whose squares need more than 16 bits, in 32."""
    return tf.cast(values, tf.float32) if values.dtype.size < 4 else values


def _values(gradient: Gradient) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _zeroed(gradient: Gradient) -> Gradient:
    if gradient is None:
        return None
    values = _values(gradient)
    clean = tf.where(tf.math.is_finite(values), values, tf.zeros_like(values))
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(clean, gradient.indices, gradient.dense_shape)
    return clean


def cold_branch(branch: Callable[[], tf.Tensor]) -> Callable[[], tf.Tensor]:
    """`branch` as one operation of the graph.

    TensorFlow writes both branches of a `tf.cond` into the graph around it, where each operation of
    the one that is not taken still costs a microsecond; a function that may not be written out is
    one operation, whatever is in it.
    """
    if tf.executing_eagerly():
        return branch
    function: Callable[[], tf.Tensor] = tf.function(
        branch, autograph=False, experimental_attributes={"_noinline": True}
    )
    return function
