"""Losses and metrics that need the rows of all replicas at once get them.

`tf.sqrt(tf.reduce_mean(...))`, Dice and Tversky losses, or a loss that compares the rows of a batch
with each other are not the average of what replicas compute of their own rows. Where the graph of a
function of `(y_true, y_pred)` shows that (`phalanx.gradients.additivity`), the function is called
again on the rows of all replicas. This costs an all-gather of both, for such functions only. So is
a function that returns one number for the batch, where samples have weights or a mask.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from phalanx.gradients.additivity import Additivity, additivity_of
from phalanx.gradients.gathered_batch import gather_rows, own_rows
from phalanx.gradients.graph_walk import is_symbolic
from phalanx.gradients.replica_batch import ReplicaBatch
from phalanx.keras_compat.eager_probes import MASK

_log = logging.getLogger("phalanx")


def over_all_rows(
    original: Callable[..., Any], name: str, share: Callable[[], ReplicaBatch | None]
) -> Callable[..., Any]:
    """A method that calls a function of `(y_true, y_pred)`, which sees all rows where it must.

    Args:
        original: the method.
        name: of its object's attribute that is the function.
        share: gives the share of this replica where replicas add up their losses, else None.
    """

    def method(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        replica_batch = share()
        if replica_batch is None or tf.executing_eagerly():
            return original(self, y_true, y_pred, sample_weight)
        is_weighted = sample_weight is not None or getattr(y_pred, MASK, None) is not None
        function = _over_all_rows(getattr(self, name), replica_batch, is_weighted)
        return original(_With(self, **{name: function}), y_true, y_pred, sample_weight)

    return method


class _With:
    """An object, with other values of some attributes."""

    def __init__(self, target: Any, **attributes: Any) -> None:
        self.__dict__.update(attributes, _target=target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # `super()` looks at it
        return type(self._target)


def _over_all_rows(
    function: Callable[..., Any], replica_batch: ReplicaBatch, is_weighted: bool
) -> Callable[..., Any]:
    def call(y_true: Any, y_pred: Any, **kwargs: Any) -> Any:
        result = function(y_true, y_pred, **kwargs)
        given = keras.tree.flatten((y_true, y_pred))
        if not _needs_all_rows(result, given, replica_batch, is_weighted):
            return result
        wholes = iter(gather_rows([one for one in given if one is not None]))
        everywhere = keras.tree.map_structure(
            lambda one: None if one is None else next(wholes), (y_true, y_pred)
        )
        whole = function(*everywhere, **kwargs)
        if not whole.shape.rank:
            replica_batch.row_sums.take_for_mean(whole)
            return whole
        if whole.shape[0] is not None:  # an axis of another kind
            replica_batch.record_gathered(whole)
            return whole
        return own_rows(whole, replica_batch)

    return call


def _needs_all_rows(
    result: Any, given: list[Any], replica_batch: ReplicaBatch, is_weighted: bool
) -> bool:
    tensors = [one for one in given if one is not None]
    if not is_symbolic(result) or not all(_has_rows(one) for one in tensors):
        return False
    row_sums = replica_batch.row_sums
    found, others = additivity_of(result, tensors, row_sums)
    if found is Additivity.MIXED or (found is Additivity.OPAQUE and result.shape.rank == 0):
        if others:
            _warn_of_other_rows()
        return not others and not any(map(row_sums.is_gathered, tensors))
    # Keras multiplies one number for the batch by each row's weight: the number must be the whole.
    needs_whole = result.shape.rank != 0 or is_weighted
    return found is Additivity.TOTAL and needs_whole and not others


def _has_rows(value: Any) -> bool:
    return is_symbolic(value) and bool(value.shape.rank) and value.dtype != tf.string


def _warn_of_other_rows() -> None:
    _log.warning(
        "A loss or a metric combines rows of the batch with each other, and uses tensors of the "
        "batch besides y_true and y_pred. Each worker computes it of its own rows, so it differs "
        "from one device. Gather what it needs by phalanx.all_gather_batch."
    )
