"""What a step assigns to variables, and what it calls its loss, has the rows of all replicas."""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from phalanx.gradients.global_values import GlobalValues, NotComputedAgainError
from phalanx.gradients.graph_walk import is_in_branch, is_symbolic
from phalanx.gradients.replica_batch import ReplicaBatch
from phalanx.keras_compat.eager_probes import MASK
from phalanx.keras_compat.optimizer_patches import adds_up

_SUMS = ("sum", tf.VariableAggregation.SUM)

_log = logging.getLogger("phalanx")


def of_all_rows(replica_batch: ReplicaBatch, variable: Any, values: Sequence[Any]) -> Sequence[Any]:
    """What a step assigns to a variable, as one device has it, which has the rows of all replicas.

    A metric counts a replica's own rows, and so does what a replica keeps for itself. In a branch
    or a loop, where replicas may differ in what they run, each assigns what it has.

    Args:
        replica_batch: the replica's, in a step whose replicas add up.
        variable: Keras's or TensorFlow's.
        values: what the step computed: a value, or indices and values that belong together.
    """
    is_own = variable.aggregation in _SUMS or id(variable) in replica_batch.on_its_own
    if is_own or replica_batch.is_replica_invariant(variable):
        return values
    if replica_batch.tape_gradients.need_totals:  # this step is traced again
        return values
    step = _global_values(replica_batch) if any(map(is_symbolic, values)) else None
    if step is None:
        return values
    try:
        return [step.of_all(one) if is_symbolic(one) else one for one in values]
    except NotComputedAgainError as cause:
        _warn(getattr(variable, "path", variable.name), str(cause))
        return values


def loss_of_all_rows(replica_batch: ReplicaBatch, loss: Any) -> Any:
    """A scalar of a step, of the rows of all replicas where it combines rows; else as it is."""
    if (values := _values_that_mix(replica_batch, loss)) is None:
        return loss
    try:
        return values.of(loss)
    except NotComputedAgainError:
        return loss


def mean_of_all_rows(replica_batch: ReplicaBatch, value: Any) -> Any:
    """What a step computes, such that the mean over replicas is the number of one device."""
    whole = loss_of_all_rows(replica_batch, value) if adds_up() else value
    return replica_batch.for_mean(value) if whole is value else whole


def parts_of_mixed_loss(
    replica_batch: ReplicaBatch, loss: Any, *, is_mean: bool
) -> tuple[list[Any], list[Any]] | None:
    """Targets and their gradients for a loss that combines rows, as `GlobalValues` has them.

    None where it does not, and where it cannot be computed of the rows of all replicas.
    """
    if (values := _values_that_mix(replica_batch, loss)) is None:
        return None
    try:
        return values.gradient_parts(loss, is_mean=is_mean)
    except NotComputedAgainError as cause:
        _warn_of_loss(str(cause))
        return None


def own_rows_of_all(replica_batch: ReplicaBatch, arguments: Sequence[Any]) -> Sequence[Any]:
    """What a metric is given, where some of it is made of other rows, too; else as it is.

    Each replica then counts its own rows of what one device has.
    """
    values = _global_values(replica_batch)
    tensors = [one for one in arguments if is_symbolic(one) and one.shape.rank]
    if values is None or not any(map(values.mixes_entries, tensors)):
        return arguments
    try:
        return [
            values.own_rows_of(one) if is_symbolic(one) and one.shape.rank else one
            for one in arguments
        ]
    except NotComputedAgainError:
        return arguments


def own_rows_before_layer(replica_batch: ReplicaBatch, inputs: Any) -> Any:
    """What a layer is given, where some of it is made of other rows, as by mixup; else as it is.

    The layers that follow then compute this replica's rows of what one device has, and nothing for
    other replicas' rows. Where a tape watches an input, it stays, as gradients flow to other rows.
    """
    values = _global_values(replica_batch)
    if values is None:
        return inputs

    def own(one: Any) -> Any:
        if not is_symbolic(one) or not values.mixes_in_rows(one) or _is_watched(one):
            return one
        try:
            rows = values.own_rows_of(one)
        except NotComputedAgainError:
            return one
        replica_batch.row_sums.take_for_rows(rows)
        if (mask := getattr(one, MASK, None)) is not None:
            setattr(rows, MASK, mask)
        return rows

    return keras.tree.map_structure(own, inputs)


def has_all_rows(replica_batch: ReplicaBatch, tensor: Any) -> bool:
    """Whether a tensor of a step has the rows of this replica along axis 0, each on its own."""
    values = _global_values(replica_batch) if is_symbolic(tensor) else None
    return values is not None and values.has_all_rows(tensor)


def has_entries(replica_batch: ReplicaBatch, tensor: Any) -> bool:
    """Whether axis 0 of a tensor of a step has entries of which each row has any number."""
    values = _global_values(replica_batch) if is_symbolic(tensor) else None
    return values is not None and values.has_entries(tensor)


def is_same_on_all(replica_batch: ReplicaBatch, tensor: Any) -> bool:
    """Whether all replicas have the same in a tensor: a constant, a variable."""
    return not is_symbolic(tensor) or not replica_batch.row_sums.may_differ(tensor)


def _is_watched(tensor: Any) -> bool:
    """Whether a tape takes gradients by a tensor, or by what it is made of."""
    record = importlib.import_module("tensorflow.python.eager.record")
    return bool(record.should_record_backprop([tensor]))


def _values_that_mix(replica_batch: ReplicaBatch, loss: Any) -> GlobalValues | None:
    """Those of the step where `loss` is a scalar of it that combines rows; else None."""
    values = _global_values(replica_batch) if is_symbolic(loss) else None
    return values if values is not None and values.mixes(loss) else None


def _global_values(replica_batch: ReplicaBatch) -> GlobalValues | None:
    """Those of the step; None in a branch, a loop or a function, where replicas may differ."""
    if is_in_branch() or not replica_batch.in_own_strategy():
        return None
    values: GlobalValues = replica_batch.extensions.setdefault(
        GlobalValues, GlobalValues(replica_batch)
    )
    return values


@functools.cache
def _warn_of_loss(cause: str) -> None:
    _log.warning(
        "A loss seems to combine rows of the batch, and cannot be computed of the rows of all "
        "workers (%s). Each worker computes it of its own rows, so it may differ from one device.",
        cause,
    )


@functools.cache
def _warn(path: str, cause: str) -> None:
    _log.warning(
        "%s is assigned a value that combines rows of the batch, and that cannot be computed of "
        "the rows of all workers (%s). Each worker assigns that of its own rows, and their mean "
        "is taken after each epoch.",
        path,
        cause,
    )
