"""`@phalanx.distribute_step`: the function that trains on one batch, shared out among workers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.data.batches import cut, static_share, total_rows
from phalanx.distributed.strategy import MultiWorkerStrategy
from phalanx.distributed.topology import ReplicaTopology, rows_of, topology_of
from phalanx.errors import ConfigurationError, DataError
from phalanx.gradients.all_reduce import reduce_sum
from phalanx.gradients.dynamic_rows import RowsOfTraces
from phalanx.gradients.replica_batch import ReplicaBatch
from phalanx.gradients.step_context import current_replica_batch, step_scope
from phalanx.gradients.tape_gradients import TapeGradients, UsesGradientsError
from phalanx.keras_compat.constant_shapes import BatchSizeInShapes
from phalanx.keras_compat.global_values import mean_of_all_rows
from phalanx.keras_compat.loss_patches import results_are_noted, weighted_loss_patch
from phalanx.keras_compat.optimizer_patches import optimizers_reduce_first
from phalanx.training.step_function import as_in_a_function


def distribute_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """Share each batch that `step` is given out among the workers.

        @phalanx.distribute_step
        @tf.function
        def train_step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_function(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_weights)
            optimizer.apply(gradients, model.trainable_weights)
            accuracy.update_state(y, model(x))
            return loss

    Every worker calls it with the same global batch. The function is given this worker's rows, the
    gradients are weighed and added up, and weights, metrics and what is returned are those of the
    whole batch, on every worker. With one worker, and outside of `phalanx run`, `step` is called
    as it is.

    Args:
        step: a Python function or a `tf.function`. Its tensor arguments, in any structure, have
            the rows of the batch along axis 0, all equally many; scalars and what is no tensor are
            passed on. A loss that is a sum over rows is recognised in a `tf.function`; elsewhere
            say it by `phalanx.sum_loss`.

    Returns:
        A function that takes and returns what `step` does: scalars are means over the rows of all
        workers (sums where they are recognised as sums), tensors with a row for each row of the
        batch are put together in order.
    """
    return functools.update_wrapper(_DistributedStep(step), step)


def sum_loss(loss: Any) -> Any:
    """Say that `loss`, a scalar, is a sum over the rows of the batch and not a mean.

    The gradients of a sum are added up over workers as they are, those of a mean are weighed by
    each worker's rows. In a `tf.function` and under `fit` sums are recognised; in an eager step,
    and where a function of the script's own computes the loss, this says it.

    Args:
        loss: a scalar tensor.

    Returns:
        The loss to differentiate and to report; on one worker it is `loss` itself.
    """
    replica_batch = current_replica_batch()
    if replica_batch is None or topology_of(tf.distribute.get_strategy()).total == 1:
        return loss
    scaled = loss * replica_batch.inverse_weight(loss.dtype)
    replica_batch.row_sums.take_for_mean(scaled)
    return scaled


class _DistributedStep:
    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step
        python = getattr(step, "python_function", None)
        self._python = None if python is None else as_in_a_function(python)
        self._rows = RowsOfTraces(are_dynamic=self._python is not None)
        self._make(tapes_give_totals=False)

    def _make(self, *, tapes_give_totals: bool) -> None:
        self._tapes_give_totals = tapes_give_totals
        if self._python is None:
            self._run: Any = functools.partial(
                _run_on_worker, self._step, tapes_give_totals, self._rows
            )
        else:
            run = functools.partial(_run_on_worker, self._python, tapes_give_totals, self._rows)
            self._run = tf.function(run, autograph=False, reduce_retracing=True)

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        """A method's step is bound as any function is."""
        return self if owner is None else functools.partial(self, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        strategy = tf.distribute.get_strategy()
        topology = topology_of(strategy)
        if topology.total == 1 or not tf.distribute.in_cross_replica_context():
            return self._step(*args, **kwargs)
        if not isinstance(strategy, MultiWorkerStrategy):
            raise ConfigurationError(
                f"Asked for distribute_step under {type(strategy).__name__}, whose replicas are "
                "in one process; it shares batches out among workers. Use phalanx run --workers, "
                "or call strategy.run in the loop."
            )
        with optimizers_reduce_first, weighted_loss_patch:
            try:
                self._look_at_step(strategy, args, kwargs)
                return self._run(strategy, args, kwargs)
            except UsesGradientsError:  # while it is traced; nothing has run
                self._make(tapes_give_totals=True)
                self._look_at_step(strategy, args, kwargs)
                return self._run(strategy, args, kwargs)

    def _look_at_step(self, *arguments: Any) -> None:
        """Before the first step: see, by tracing it, whether it needs its number of rows."""
        if not self._rows.are_known:
            self._rows.decide(
                lambda: self._run.get_concrete_function(*arguments),
                lambda: self._make(tapes_give_totals=self._tapes_give_totals),
                are_static=True,
            )


def _has_rows(value: Any) -> bool:
    return isinstance(value, (tf.Tensor, np.ndarray)) and len(value.shape) > 0


def _run_on_worker(
    step: Callable[..., Any],
    tapes_give_totals: bool,
    rows: RowsOfTraces,
    strategy: Any,
    args: Any,
    kwargs: Any,
) -> Any:
    replica_batch, (args, kwargs) = _cut((args, kwargs), topology_of(strategy), rows)
    replica_batch.wants_before = True
    tapes = replica_batch.tape_gradients = TapeGradients(are_totals=tapes_give_totals)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def on_replica() -> Any:
        with (
            step_scope(replica_batch=replica_batch),
            replica_batch.published(),
            replica_batch.looking_at((args, kwargs)),
            results_are_noted,
        ):
            result = step(*args, **kwargs)
            tapes.take_returned(result)
            if tapes.need_totals and not tapes.are_totals:
                raise UsesGradientsError
            means = keras.tree.map_structure(
                functools.partial(mean_of_all_rows, replica_batch), result
            )
        whole = _of_all(means, replica_batch, strategy)
        return keras.tree.map_structure(_as_returned, whole, result)

    return rows.run(lambda: strategy.run(on_replica))


def _cut(
    arguments: Any, topology: ReplicaTopology, traced: RowsOfTraces
) -> tuple[ReplicaBatch, Any]:
    """This worker's share of the batch, and the arguments with its rows of each tensor."""
    leaves = keras.tree.flatten(arguments)
    tensors = {i: tf.convert_to_tensor(leaf) for i, leaf in enumerate(leaves) if _has_rows(leaf)}
    rows = {tensor.shape[0] for tensor in tensors.values()}
    if len(rows) != 1:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors.values()) or "none"
        raise DataError(
            "A step of distribute_step takes tensors whose axis 0 is the batch, all with equally "
            f"many rows; found the shapes {shapes}. Pass what is no batch as a scalar, or let the "
            "function read it from outside."
        )
    (known,) = rows
    total = total_rows(tensors)
    start, count = rows_of(topology.first, topology.total, total)
    static = static_share(known, topology.first, topology.total)
    _, own = cut(tensors, topology.first, topology.total, static=static)
    own = traced.of(own)
    parts = keras.tree.pack_sequence_as(arguments, [own.get(i, v) for i, v in enumerate(leaves)])
    static = None if traced.are_dynamic else static
    replica_batch = ReplicaBatch(count, total, start=start, static_count=static)
    replica_batch.batch_size_in_shapes = BatchSizeInShapes(known, topology.total)
    return replica_batch, parts


def _of_all(result: Any, replica_batch: ReplicaBatch, strategy: MultiWorkerStrategy) -> Any:
    """What the step returned, and what it counted, of all workers."""
    leaves = keras.tree.flatten(result)
    own_rows = replica_batch.own_rows
    results = {
        i: reported
        for i, v in enumerate(leaves)
        if (reported := replica_batch.result_of(v)) is not None
    }
    others = {i: leaf for i, leaf in enumerate(leaves) if i not in results}
    gathered = {
        i: strategy.collectives.all_gather(leaf[: replica_batch.count])
        for i, leaf in others.items()
        if _has_rows(leaf) and _is_by_row(leaf, own_rows)
    }
    means = {
        i: leaf
        for i, leaf in others.items()
        if isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating and i not in gathered
    }
    counted = [v for v in replica_batch.assigned.values() if _is_shared(v)]
    contributions = [leaf * tf.cast(replica_batch.weight, leaf.dtype) for leaf in means.values()]
    contributions += [_contribution(variable, replica_batch) for variable in counted]
    totals = reduce_sum(contributions, what="what a step returns")
    for variable, total in zip(counted, totals[len(means) :], strict=True):
        before = replica_batch.before[id(variable)]
        variable.value.assign(before + total if variable.aggregation == "sum" else total)
    gathered |= zip(means, totals, strict=False)
    gathered |= {i: metric.compute() for i, metric in results.items()}
    return keras.tree.pack_sequence_as(
        result, [gathered.get(i, leaf) for i, leaf in enumerate(leaves)]
    )


def _as_returned(whole: Any, own: Any) -> Any:
    """A sum of integers is one again."""
    if not isinstance(own, tf.Tensor) or not own.dtype.is_integer:
        return whole
    return tf.cast(tf.round(whole) if whole.dtype.is_floating else whole, own.dtype)


def _is_by_row(leaf: Any, rows: Any) -> bool:
    """Whether a tensor has a row for each row of the worker's part."""
    static = tf.get_static_value(rows)
    return leaf.shape[0] is None or static is None or leaf.shape[0] == int(static)


def _is_shared(variable: Any) -> bool:
    """Whether workers assign a variable each in its own way: metrics, moving statistics."""
    return variable.aggregation in ("sum", "mean") or variable.dtype.startswith(("float", "bfloat"))


def _contribution(variable: Any, replica_batch: ReplicaBatch) -> Any:
    """What this worker adds: to a count what it has counted, to a mean its part."""
    value = tf.convert_to_tensor(variable.value)
    if variable.aggregation == "sum":
        return value - replica_batch.before[id(variable)]
    return value / tf.cast(tf.distribute.get_strategy().num_replicas_in_sync, value.dtype)
