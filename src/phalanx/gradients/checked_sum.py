"""Add up gradients, and tell whether the total is finite.

The total is the same on every replica, so all know of it, and it alone is looked at. Which replica
it came from each asks of its own gradients, and only then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import tensorflow as tf

from phalanx.gradients.finite import are_finite, can_overflow, each_is_finite
from phalanx.gradients.reduce import Gradient, reduce_packed

_NAME = "whether the losses are finite"

Own = tuple[tf.Tensor, tf.Tensor]
"""Of a replica's own gradients, scalar bools: whether they were not finite; whether the total can
be so by them, by overflow in the sum too."""


@dataclass(frozen=True, kw_only=True)
class CheckedSum:
    """Gradients that are added up.

    Attributes:
        total: one per variable, None where there is none.
        finite: whether all is finite, scalar bool.
        own: looks at what this replica brought, which stays in memory until it is known whether
            that is needed; for a branch that is hardly ever taken.
    """

    total: list[Gradient]
    finite: tf.Tensor
    own: Callable[[], Own]


def checked_sum(
    gradients: Sequence[Gradient], names: Sequence[str], *, replicas: int
) -> CheckedSum:
    """The sum of `gradients` over all replicas, which is looked at.

    Args:
        gradients: this replica's.
        names: one for each.
        replicas: how many there are.
    """
    if replicas == 1:
        alone = list(gradients)
        return CheckedSum(
            total=alone, finite=are_finite(alone), own=lambda: _both(tf.constant(True))
        )
    sums = reduce_packed(gradients, names, what="gradients")
    own = partial(_looked_at, sums.brought, replicas)
    return CheckedSum(total=sums.values, finite=are_finite(sums.together), own=own)


def sum_with_losses(
    gradients: Sequence[Gradient], names: Sequence[str], loss: tf.Tensor, *, replicas: int
) -> CheckedSum:
    """The same where the loss of each replica is looked at, and not the gradients.

    Args:
        gradients: this replica's.
        names: one for each.
        loss: this replica's, scalar; that it is not finite travels with the gradients.
        replicas: how many there are.
    """
    is_bad = ~tf.math.is_finite(loss)
    if replicas == 1:
        return CheckedSum(total=list(gradients), finite=~is_bad, own=lambda: _both(is_bad))
    brought = [*gradients, tf.cast(is_bad, tf.float32)]
    *total, bad = reduce_packed(brought, [*names, _NAME], what="gradients").values
    return CheckedSum(total=total, finite=bad < 1, own=lambda: _both(is_bad))


def _looked_at(brought: Sequence[tf.Tensor], replicas: int) -> Own:
    return ~each_is_finite(brought), can_overflow(brought, replicas)


def _both(is_bad: tf.Tensor) -> Own:
    return is_bad, is_bad
