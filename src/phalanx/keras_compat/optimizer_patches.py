"""The one place that touches how a Keras optimizer applies gradients.

Keras 3 clips each replica's gradient and only then adds the replicas up (FACTS: keras
issue 20585 and docs/what-is-the-same.md), and its TensorFlow optimizers update variables
through `merge_call`, which TensorFlow forbids inside a `cond`; gradient accumulation, EMA
overwriting and loss scaling all need one.

Here `apply` walks the pipeline, which adds the replicas up first. What remains is the same
on every replica, so each replica runs Keras's plain, single-device algorithm
(`BaseOptimizer`) on its own copy of the variables: clipping sees the total gradient, and
nothing needs a merge.

Private names used, all guarded by tests/replicas/test_canaries.py:
`BaseOptimizer._backend_update_step`, `_apply_weight_decay`,
`_backend_increment_gradient_accumulators`, `_backend_maybe_overwrite_model_variables`,
`_overwrite_model_variables_with_average_value`, `_clip_gradients`, `_iterations`,
`_trainable_variables`; `LossScaleOptimizer._common_apply`; `tf.Variable._aggregation`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from phalanx.distributed.strategy import MultiWorkerStrategy
from phalanx.gradients.all_reduce import Gradient, Reduction, scale
from phalanx.gradients.apply_gradients import OptimizerHooks, reduce_and_apply
from phalanx.gradients.graph_walk import is_in_branch
from phalanx.gradients.nonfinite import guard_of
from phalanx.gradients.step_context import current_replica_batch, current_step, step_scope
from phalanx.gradients.tape_gradients import UsesGradientsError
from phalanx.keras_compat.horovod_compat import is_distributed
from phalanx.keras_compat.optimizer_clippers import (
    adds_rows,
    clip_local,
    clip_total,
    innermost,
    optimizers_in,
    parts_of,
)
from phalanx.keras_compat.patches import Patches

_LOCAL_METHODS = (
    "_apply_weight_decay",
    "_backend_increment_gradient_accumulators",
    "_backend_maybe_overwrite_model_variables",  # from Keras 3.16 on
    "_backend_update_step",
    "_overwrite_model_variables_with_average_value",
)
_Optimizer = keras.optimizers.Optimizer
_LossScaleOptimizer = keras.optimizers.LossScaleOptimizer
_MultiOptimizer = getattr(keras.optimizers, "MultiOptimizer", None)
"""None before Keras 3.15."""
_log = logging.getLogger("phalanx")


def in_many_replicas() -> bool:
    """Whether this code runs in a replica's step next to other replicas."""
    return (
        not tf.distribute.in_cross_replica_context()
        and tf.distribute.get_strategy().num_replicas_in_sync > 1
    )


def adds_up() -> bool:
    """Whether this code runs in a replica's step whose gradients other replicas add to."""
    replica_batch = current_replica_batch()
    return in_many_replicas() and not (replica_batch is not None and replica_batch.is_local)


def in_a_replica() -> bool:
    """Whether this code runs in a replica's step of a synchronous strategy, be it the only one."""
    return (
        tf.distribute.has_strategy()
        and not tf.distribute.in_cross_replica_context()
        and not isinstance(tf.distribute.get_strategy(), tf.distribute.ParameterServerStrategy)
    )


def in_a_plain_loop() -> bool:
    """Whether this code runs on a worker as it would on one device, outside of `strategy.run`."""
    strategy = tf.distribute.get_strategy()
    return isinstance(strategy, MultiWorkerStrategy) and tf.distribute.in_cross_replica_context()


def _should_reduce(optimizer: Any) -> bool:
    """Whether `optimizer`'s `apply` is to walk the pipeline, here and now."""
    if current_step().applies_total or tf.distribute.in_cross_replica_context():
        return False
    healths = (guard_of(optimizer), guard_of(innermost(optimizer)))
    watched = current_step().probe is not None or any(guard is not None for guard in healths)
    return watched or in_a_replica()


def _reduce_and_apply(
    optimizer: Any,
    apply: Callable[..., None],
    gradients: Sequence[Gradient],
    variables: Sequence[Any] | None,
) -> None:
    """Let `gradients` walk the pipeline, `apply` at its end.

    Args:
        optimizer: the Keras optimizer whose `apply` was called.
        apply: its own `apply`, unbound from any patch.
        gradients: this replica's gradients, one per variable, None where there is none.
        variables: the variables, or None for those that the optimizer was built with.
    """
    strategy = tf.distribute.get_strategy()
    replicas = strategy.num_replicas_in_sync if adds_up() else 1
    replica_batch = current_replica_batch()
    if replicas > 1 and replica_batch is not None and replica_batch.in_own_strategy():
        are_totals = replica_batch.tape_gradients.take_applied(
            gradients, replica_batch.row_sums.may_differ
        )
        replicas = 1 if are_totals else replicas
        if not are_totals and _merges_in_branch(strategy):
            raise UsesGradientsError
    if not optimizer.built and variables is not None:
        optimizer.build(list(variables))
    if in_a_replica():
        _let_counters_be_local(optimizer)
    known = list(innermost(optimizer)._trainable_variables if variables is None else variables)
    context = tf.distribute.get_replica_context()
    watched = (optimizer, *parts_of(innermost(optimizer)))
    guard = next((found for one in watched if (found := guard_of(one)) is not None), None)
    if guard is not None:
        guard.paths = tuple(getattr(v, "path", v.name) for v in known)

    def finish(total: Sequence[Gradient]) -> None:
        with step_scope(applies_total=True):
            apply(total, variables)

    applied = nullcontext() if replica_batch is None else replica_batch.tape_gradients.applied()
    hooks = OptimizerHooks(
        apply=finish,
        clip_local=clip_local(optimizer, known),
        clip_total=lambda total: clip_total(optimizer, total, known),
        loss_scale=_loss_scale(optimizer),
        step=innermost(optimizer)._iterations.value,
        skip=lambda: _count_step(optimizer),
        adds_rows=adds_rows(optimizer),
    )
    with applied:
        reduce_and_apply(
            gradients,
            known,
            hooks=hooks,
            replica_batch=replica_batch,
            weighted=replica_batch is not None and replica_batch.loss_is_weighted(optimizer),
            replica=int(tf.get_static_value(context.replica_id_in_sync_group)),
            replicas=replicas,
            guard=guard,
            observation=current_step().probe,
            reduction=Reduction(collectives=strategy.collectives, options=strategy.reduce_options)
            if isinstance(strategy, MultiWorkerStrategy)
            else None,
        )


def _merges_in_branch(strategy: Any) -> bool:
    """Whether replicas of one process would add up in the branch of a condition, as they cannot."""
    return is_in_branch() and not isinstance(strategy, MultiWorkerStrategy)


def _averaged(optimizer: Any, gradients: Sequence[Gradient], variables: Any) -> None:
    """Apply the mean of the workers' gradients, in a loop that knows nothing of workers.

    Where all workers read the same data, it is what each of them has.
    """
    strategy = tf.distribute.get_strategy()
    workers = strategy.num_replicas_in_sync
    if workers > 1 and not is_distributed(optimizer):  # Horovod's loops read shards of their own
        _warn_of_plain_loops(workers)
    own = scale(list(gradients), tf.constant(1 / workers))

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def on_replica() -> None:
        optimizer.apply(own, variables)

    strategy.run(on_replica)


@functools.cache
def _warn_of_plain_loops(workers: int) -> None:
    if tf.distribute.get_strategy().collectives.rank == 0:
        _log.warning(
            "A loop of the script's own applies gradients: each of the %d workers computes whole "
            "batches, and the mean of their gradients is applied. The result is one device's, and "
            "no faster. To share each batch out, add @phalanx.distribute_step to the function that "
            "trains on one batch.",
            workers,
        )


def _loss_scale(optimizer: Any) -> Any:
    if isinstance(optimizer, _LossScaleOptimizer):
        return tf.convert_to_tensor(optimizer.dynamic_scale)
    return optimizer.loss_scale_factor


def _count_step(optimizer: Any) -> None:
    """Count a step that updates nothing, as the other workers count theirs."""
    inner = innermost(optimizer)
    with step_scope(applies_total=True):
        for one in (inner, *parts_of(inner)):
            if one.built:
                one._iterations.assign_add(1)


def _let_counters_be_local(optimizer: Any) -> None:
    """Let each replica count for itself.

    Keras declares `iterations` "only first replica", whose assignment is a merge_call;
    the count is the same everywhere, so each replica may assign its own copy.
    """
    for one in optimizers_in(optimizer):
        variable = one._iterations.value
        if isinstance(variable, tf.distribute.DistributedValues):
            variable._aggregation = tf.VariableAggregation.NONE
            for component in variable.values:
                component._aggregation = tf.VariableAggregation.NONE


def _replacements() -> Mapping[tuple[Any, str], Any]:
    plain = next(base for base in _Optimizer.__mro__ if base.__module__.endswith("base_optimizer"))
    made: dict[tuple[Any, str], Any] = {
        (_Optimizer, "apply"): _routed_apply(_Optimizer.apply),
        (_LossScaleOptimizer, "apply"): _routed_apply(_LossScaleOptimizer.apply, _apply_scaled),
        (_Optimizer, "scale_loss"): _routed_scale_loss(_Optimizer.scale_loss),
        (_LossScaleOptimizer, "scale_loss"): _routed_scale_loss(_LossScaleOptimizer.scale_loss),
    }
    if _MultiOptimizer is not None:  # all gradients are added up before its parts get theirs
        made[_MultiOptimizer, "apply"] = _routed_apply(_MultiOptimizer.apply)
    for name in filter(partial(hasattr, plain), _LOCAL_METHODS):
        made[_Optimizer, name] = _routed(getattr(_Optimizer, name), getattr(plain, name))
    return made


def _routed(merging: Callable[..., Any], local: Callable[..., Any]) -> Callable[..., Any]:
    """Choose Keras's single-device method inside a replica's step, its own elsewhere.

    One replica makes no difference: its update is in a `cond` as any other's.
    """

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = local if in_a_replica() else merging
        return chosen(self, *args, **kwargs)

    method.__name__ = merging.__name__
    return method


def _routed_apply(
    original: Callable[..., Any], finish: Callable[..., None] | None = None
) -> Callable[..., Any]:
    """`apply` that walks the pipeline in a replica's step.

    Args:
        original: Keras's own.
        finish: what is done with a total, given the optimizer, gradients and variables; None for
            `original`.
    """

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        if in_a_plain_loop():
            return _averaged(self, grads, trainable_variables)
        if not grads or not _should_reduce(self):  # without gradients Keras does nothing
            return original(self, grads, trainable_variables)
        return _reduce_and_apply(
            self, partial(finish or original, self), grads, trainable_variables
        )

    return apply


def _apply_scaled(optimizer: Any, total: Any, variables: Any) -> None:
    """What a `LossScaleOptimizer` does with a total."""
    if not optimizer.inner_optimizer.built:
        optimizer.inner_optimizer.build(list(variables))
    optimizer._common_apply(total, variables)


def _routed_scale_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    def scale_loss(self: Any, loss: Any) -> Any:
        replica_batch = current_replica_batch()
        if replica_batch is not None:
            replica_batch.loss = loss
        if replica_batch is not None and adds_up():
            # Before the backward pass, so that gradients which cross replicas inside it
            # (synchronized BatchNormalization) carry the right weight too.
            loss = replica_batch.weighed(loss)
            replica_batch.record_weighted_loss(self)
        return original(self, loss)

    return scale_loss


optimizers_reduce_first = Patches(_replacements)
"""Enter it, and every Keras optimizer adds up before it clips; leave it, and none does."""


def patch_instance(optimizer: Any) -> None:
    """Make one optimizer add up first, whether or not the others do."""

    def apply(grads: Any, trainable_variables: Any = None) -> Any:
        with optimizers_reduce_first:
            return type(optimizer).apply(optimizer, grads, trainable_variables)

    vars(optimizer)["apply"] = apply
