"""The way of every gradient: weigh -> clip own -> add up -> observe -> check -> apply.

Unscaling of a scaled loss and clipping of the total follow inside the optimizer's own
`apply`, where gradient accumulation and loss scaling have them on one device too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from phalanx.gradients.health import Health
from phalanx.gradients.observation import Applied, Observation
from phalanx.gradients.reduce import Gradient, reduce_sum, scale
from phalanx.gradients.rules import all_finite
from phalanx.gradients.share import ReplicaShare


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """What the pipeline asks of the optimizer; see `phalanx.seam.optimizers`.

    Attributes:
        apply: clips and applies a total gradient.
        clip_own: the clippers for a replica's own gradient.
        clip_total: what `apply` will clip, computed apart for those who look.
        loss_scale: the factor on the loss, so on the gradients; None for 1.
        step: the optimizer's iteration.
    """

    apply: Callable[[Sequence[Gradient]], None]
    clip_own: Callable[[Sequence[Gradient]], list[Gradient]] | None
    clip_total: Callable[[Sequence[Gradient]], Sequence[Gradient]]
    loss_scale: Any
    step: Any


def walk(
    gradients: Sequence[Gradient],
    variables: Sequence[Any],
    *,
    hooks: Hooks,
    share: ReplicaShare | None,
    weighted: bool,
    replica: int,
    replicas: int,
    health: Health | None,
    observation: Observation | None,
) -> None:
    """Take one replica's gradients to the end of the pipeline.

    Args:
        gradients: this replica's, one per variable, None where there is none.
        variables: the variables they are for.
        hooks: the optimizer.
        share: the replica's share of the global batch; None in a hand-written loop,
            where the replicas' gradients are summed as they are.
        weighted: whether the gradients carry the share's weight already.
        replica: this replica's number in the gang.
        replicas: replicas in the gang.
        health: what to do and to remember where the total is not finite.
        observation: who looks, if anybody.
    """
    factor = _mean_factor(share, weighted, replicas)
    own = list(gradients)
    if hooks.clip_own is not None:
        mean_of_own = _unscaled(factor, hooks.loss_scale)
        # No number where a replica holds no sample: its gradient stays zero.
        own = scale(hooks.clip_own(scale(own, mean_of_own)), tf.math.reciprocal_no_nan(mean_of_own))
    to_sum = own if share is None or weighted or replicas == 1 else scale(own, share.weight)
    flags: tf.Tensor | None = None
    finite: tf.Tensor | None = None
    if health is not None and health.policy != "ignore":
        finite = all_finite(own)
        flags = tf.one_hot(replica, replicas) * tf.cast(~finite, tf.float32)
    total = _add_up(to_sum, flags, replicas)
    if flags is not None:
        flags = total.pop()
        finite = finite if replicas == 1 else all_finite(total)
    if observation is None:
        _finish(total, finite, flags, hooks, health)
    else:
        unscaled = scale(total, _unscaled(1.0, hooks.loss_scale))
        clipped_total = hooks.clip_total(unscaled)
        before = [tf.identity(v) for v in variables]
        _finish(total, finite, flags, hooks, health)
        observation.record(
            replica,
            Applied(
                paths=[getattr(v, "path", v.name) for v in variables],
                local=scale(own, _unscaled(factor, hooks.loss_scale)),
                total=unscaled,
                clipped=clipped_total,
                before=before,
                after=[tf.identity(v) for v in variables],
                count=tf.constant(0) if share is None else share.count,
                batch=tf.constant(0) if share is None else share.total,
                replicas=replicas,
            ),
        )


def _add_up(values: list[Gradient], flags: tf.Tensor | None, replicas: int) -> list[Gradient]:
    everything = values if flags is None else [*values, flags]
    return list(everything) if replicas == 1 else reduce_sum(everything)


def _finish(
    total: list[Gradient],
    finite: tf.Tensor | None,
    flags: tf.Tensor | None,
    hooks: Hooks,
    health: Health | None,
) -> None:
    if health is None or finite is None or flags is None:
        hooks.apply(total)
    else:
        health.apply(total, finite, flags, hooks.step, hooks.apply)


def _mean_factor(share: ReplicaShare | None, weighted: bool, replicas: int) -> Any:
    """What makes a replica's gradient, as it came, the mean over its own samples."""
    if share is None:
        return float(replicas)  # by convention it was divided by the global batch
    return share.inverse_weight(tf.float32) if weighted else 1.0


def _unscaled(factor: Any, loss_scale: Any) -> Any:
    if loss_scale is None:
        return tf.convert_to_tensor(factor, tf.float32)
    return tf.cast(factor, tf.float32) / tf.cast(loss_scale, tf.float32)
