"""Add up gradients, and tell with them which replicas brought what is not finite.

What a replica says of its own travels as one more number among the gradients, so it takes no
all-reduce of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from phalanx.gradients.finite import is_finite, said_of
from phalanx.gradients.reduce import Gradient, reduce_packed

_NAME = "which replicas are finite"


@dataclass(frozen=True, kw_only=True)
class CheckedSum:
    """Gradients that are added up.

    Attributes:
        total: one per variable, None where there is none.
        said: what each replica said of its own, float32 of shape [replicas].
        finite: whether all is finite, scalar bool.
    """

    total: list[Gradient]
    said: tf.Tensor
    finite: tf.Tensor


def checked_sum(
    gradients: Sequence[Gradient],
    names: Sequence[str],
    *,
    replica: int,
    replicas: int,
    saying: tf.Tensor | None = None,
) -> CheckedSum:
    """The sum of `gradients` over all replicas.

    Args:
        gradients: this replica's.
        names: one for each.
        replica: this replica's number.
        replicas: how many there are.
        saying: what this replica says, scalar float32, and the total is then not looked at; None
            to say whether its gradients are finite.
    """
    own = said_of(gradients) if saying is None else saying
    if replicas == 1:
        said = tf.reshape(own, [1])
        return CheckedSum(total=list(gradients), said=said, finite=is_finite([], said))
    everything = [*gradients, tf.one_hot(replica, replicas) * own]
    sums = reduce_packed(everything, [*names, _NAME], what="gradients")
    *total, said = sums.values
    finite = is_finite(sums.together if saying is None else [], said)
    return CheckedSum(total=total, said=said, finite=finite)
