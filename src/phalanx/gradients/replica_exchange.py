"""What replicas exchange in a forward pass, and what comes back in the backward pass.

The loss of replica r, weighed by its share w_r, is a part of the global loss. So the gradient of
what replica s has sent is the sum over r of w_r times what the loss of r asks of it. Where its
gradients are weighed by w_s once more when they are added up, that is taken out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from phalanx.gradients.all_reduce import reduce_sum
from phalanx.gradients.collective_signature import compared
from phalanx.gradients.comm_timer import timed_together
from phalanx.gradients.step_context import current_replica_batch


def gather_equal(tensor: tf.Tensor, *, what: str) -> tf.Tensor:
    """`tensor` of all replicas, along a new axis 0; its shape is equal on all of them.

    It is one exchange, and takes half the messages of a sum. It has no gradient of its own.

    Args:
        tensor: of a rank that is known while traced.
        what: what it is, for the comparison of what workers pass.
    """
    context = tf.distribute.get_replica_context()
    collectives = getattr(context.strategy, "collectives", None)

    def gather(piece: tuple[Any, tf.Tensor]) -> tf.Tensor:
        if collectives is None:
            return context.all_gather(piece[1], axis=0)
        return collectives.gather_equal(piece[1])

    with compared(what, [tensor]):
        (gathered,) = timed_together(gather, [([0], tensor[None])])
    replicas, shape = context.num_replicas_in_sync, tensor.shape
    if shape.is_fully_defined():
        return tf.reshape(gathered, [replicas, *shape])
    return tf.reshape(gathered, tf.concat([[replicas], tf.shape(tensor)], 0))


def sum_upstream(upstream: Sequence[Any]) -> list[Any]:
    """The sum over replicas of gradients of what all of them have; for backward passes.

    Args:
        upstream: what the loss of this replica asks of it.
    """
    replica_batch = current_replica_batch()
    if replica_batch is None or replica_batch.backward_is_weighed:
        return reduce_sum(list(upstream))
    totals = reduce_sum([g * tf.cast(replica_batch.weight, g.dtype) for g in upstream])
    return [total * replica_batch.inverse_weight(total.dtype) for total in totals]
