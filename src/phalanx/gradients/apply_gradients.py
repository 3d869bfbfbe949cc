"""The way of every gradient: weigh -> clip own -> add up -> observe -> check -> apply.

Unscaling of a scaled loss and clipping of the total follow inside the optimizer's own
`apply`, where gradient accumulation and loss scaling have them on one device too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from phalanx.gradients.all_reduce import Gradient, Reduction, all_reduce_packed, scale
from phalanx.gradients.checked_all_reduce import (
    ReducedGradients,
    all_reduce_and_check,
    all_reduce_with_loss_flag,
)
from phalanx.gradients.gradient_probe import GradientProbe, GradientSnapshot
from phalanx.gradients.nonfinite import NonFiniteGuard
from phalanx.gradients.reduction_records import record_plan
from phalanx.gradients.replica_batch import ReplicaBatch
from phalanx.gradients.sparse_rows import as_it_travels, choose_travel


@dataclass(frozen=True, kw_only=True)
class OptimizerHooks:
    """What the pipeline asks of the optimizer; see `phalanx.keras_compat.optimizer_patches`.

    Attributes:
        apply: clips and applies a total gradient.
        clip_local: the clippers for a replica's own gradient.
        clip_total: what `apply` will clip, computed apart for those who look.
        adds_rows: whether it adds up equal rows of a sparse gradient before it does anything else.
        loss_scale: the factor on the loss, so on the gradients; None for 1.
        step: the optimizer's iteration.
        skip: counts a step without an update.
    """

    apply: Callable[[Sequence[Gradient]], None]
    clip_local: Callable[[Sequence[Gradient]], list[Gradient]] | None
    clip_total: Callable[[Sequence[Gradient]], Sequence[Gradient]]
    loss_scale: Any
    step: Any
    skip: Callable[[], None] = lambda: None
    adds_rows: bool = False


def reduce_and_apply(
    gradients: Sequence[Gradient],
    variables: Sequence[Any],
    *,
    hooks: OptimizerHooks,
    replica_batch: ReplicaBatch | None,
    weighted: bool,
    replica: int,
    replicas: int,
    guard: NonFiniteGuard | None,
    observation: GradientProbe | None,
    reduction: Reduction | None = None,
) -> None:
    """Take one replica's gradients to the end of the pipeline.

    Args:
        gradients: this replica's, one per variable, None where there is none.
        variables: the variables they are for.
        hooks: the optimizer.
        replica_batch: the replica's share of the global batch; None in a custom training loop,
            where the replicas' gradients are summed as they are.
        weighted: whether the gradients carry the share's weight already.
        replica: this replica's number in the worker group.
        replicas: replicas in the worker group; 1 where they add up nothing.
        guard: what to do and to remember where the total is not finite.
        observation: who looks, if anybody.
        reduction: in which pieces and in which dtype gradients travel; None where the replicas
            are not workers.
    """
    factor = _mean_factor(replica_batch, weighted, replicas)
    own = list(gradients)
    if hooks.clip_local is not None:
        mean_of_own = _unscaled(factor, hooks.loss_scale)
        # No number where a replica holds no sample: its gradient stays zero.
        own = scale(
            hooks.clip_local(scale(own, mean_of_own)), tf.math.reciprocal_no_nan(mean_of_own)
        )
    to_sum = (
        own
        if replica_batch is None or weighted or replicas == 1
        else scale(own, replica_batch.weight)
    )
    paths = _paths(variables)
    sliced = _same_slices(to_sum, replica_batch)
    to_sum = [g.values if i in sliced else g for i, g in enumerate(to_sum)]
    if reduction is not None and replicas > 1:
        travels = {
            i: choose_travel(g, variables[i], adds_rows=hooks.adds_rows)
            for i, g in enumerate(to_sum)
            if isinstance(g, tf.IndexedSlices)
        }
        for i, travel in travels.items():
            to_sum[i] = as_it_travels(to_sum[i], variables[i], travel)
        record = record_plan if replica == 0 else None
        reduction = replace(reduction, travels=travels, record=record)
    checked = _checked_sum(to_sum, paths, replica_batch, guard, replicas, reduction)
    total = _plain_sum(to_sum, paths, replicas, reduction) if checked is None else checked.total
    total = [_slices(g, sliced[i]) if i in sliced else g for i, g in enumerate(total)]
    checked = checked and replace(checked, total=total)

    def finish() -> None:
        if guard is None or checked is None:
            hooks.apply(total)
            return
        # A function of the script's own outlives the trace whose batch it would keep.
        keep = (
            replica_batch.keep
            if replica_batch is not None and replica_batch.in_own_strategy()
            else None
        )
        guard.apply(checked, hooks.apply, step=hooks.step, replica=replica, keep=keep)

    if replica_batch is not None and replica_batch.is_local and replica_batch.may_be_empty:
        finish = _if_any_samples(replica_batch, finish, hooks.skip)
    if observation is None:
        finish()
        return
    local = scale(own, _unscaled(factor, hooks.loss_scale))
    seen = _observed(
        finish, local, total, variables, hooks=hooks, replica_batch=replica_batch, replicas=replicas
    )
    observation.record(replica, seen)


def _if_any_samples(
    replica_batch: ReplicaBatch, finish: Callable[[], None], skip: Callable[[], None]
) -> Callable[[], None]:
    """`finish` where the replica holds samples of a local step; momentum alone moves no weights."""

    def branch(action: Callable[[], None]) -> Callable[[], tf.Tensor]:
        def run() -> tf.Tensor:
            action()
            return tf.constant(True)

        return run

    return lambda: tf.cond(replica_batch.count > 0, branch(finish), branch(skip))


def _same_slices(
    gradients: Sequence[Gradient], replica_batch: ReplicaBatch | None
) -> dict[int, tf.IndexedSlices]:
    """The sparse gradients, by place, that have the same slices on every replica.

    So have those of an embedding of positions. One device has each slice once, with the sum of
    the sum over all rows, which an optimizer that squares it must see.
    """
    if replica_batch is None:
        return {}
    return {
        i: gradient
        for i, gradient in enumerate(gradients)
        if isinstance(gradient, tf.IndexedSlices)
        and not replica_batch.row_sums.depends_on_batch(gradient.indices)
    }


def _slices(values: tf.Tensor, like: tf.IndexedSlices) -> tf.IndexedSlices:
    return tf.IndexedSlices(values, like.indices, like.dense_shape)


def _checked_sum(
    values: Sequence[Gradient],
    paths: list[str],
    replica_batch: ReplicaBatch | None,
    guard: NonFiniteGuard | None,
    replicas: int,
    reduction: Reduction | None,
) -> ReducedGradients | None:
    """The sum, and whether it is finite; None where it is not checked."""
    if guard is None or guard.policy == "ignore":
        return None
    if guard.policy != "watch":
        return all_reduce_and_check(values, paths, replicas=replicas, reduction=reduction)
    loss = None if replica_batch is None else replica_batch.loss
    if loss is None or not (
        tf.executing_eagerly() or loss.graph is tf.compat.v1.get_default_graph()
    ):
        return None  # it was computed in a function of the user's own, out of reach from here
    return all_reduce_with_loss_flag(values, paths, loss, replicas=replicas, reduction=reduction)


def _observed(
    finish: Callable[[], None],
    local: Sequence[Gradient],
    total: Sequence[Gradient],
    variables: Sequence[Any],
    *,
    hooks: OptimizerHooks,
    replica_batch: ReplicaBatch | None,
    replicas: int,
) -> GradientSnapshot:
    """Finish the step, and keep what there was to see before and after it."""
    unscaled = scale(total, _unscaled(1.0, hooks.loss_scale))
    clipped = hooks.clip_total(unscaled)
    before = [tf.identity(v) for v in variables]
    finish()
    return GradientSnapshot(
        paths=_paths(variables),
        local=local,
        total=unscaled,
        clipped=clipped,
        before=before,
        after=[tf.identity(v) for v in variables],
        count=tf.constant(0) if replica_batch is None else replica_batch.count,
        batch=tf.constant(0) if replica_batch is None else replica_batch.total,
        replicas=replicas,
    )


def _plain_sum(
    values: list[Gradient], paths: list[str], replicas: int, reduction: Reduction | None
) -> list[Gradient]:
    if replicas == 1:
        return list(values)
    return all_reduce_packed(values, paths, what="gradients", reduction=reduction).values


def _paths(variables: Sequence[Any]) -> list[str]:
    return [getattr(v, "path", v.name) for v in variables]


def _mean_factor(replica_batch: ReplicaBatch | None, weighted: bool, replicas: int) -> Any:
    """What makes a replica's gradient, as it came, the mean over its own samples."""
    if replica_batch is None:
        return float(replicas)  # by convention it was divided by the global batch
    return replica_batch.inverse_weight(tf.float32) if weighted else 1.0


def _unscaled(factor: Any, loss_scale: Any) -> Any:
    if loss_scale is None:
        return tf.convert_to_tensor(factor, tf.float32)
    return tf.cast(factor, tf.float32) / tf.cast(loss_scale, tf.float32)
