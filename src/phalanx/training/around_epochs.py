"""What every `fit` does around its epochs, whether replicas train in step or workers on servers."""

from __future__ import annotations

from typing import Any

from phalanx.errors import DataError
from phalanx.seam.models import first_epoch
from phalanx.training.checkpointing import Checkpointing
from phalanx.training.no_checkpoints import NoCheckpoints
from phalanx.worker.pulse import pulse


def begin_training(
    model: Any,
    callbacks: Any,
    checkpoints: Checkpointing | NoCheckpoints,
    *,
    initial_epoch: int,
    epochs: int,
) -> int:
    """Find what to go on from, and tell the callbacks that training begins.

    Args:
        model: the model.
        callbacks: Keras's list of them.
        checkpoints: those of this `fit`.
        initial_epoch: where to begin if there is nothing to go on from.
        epochs: where to end.

    Returns:
        The epoch to begin with.
    """
    checkpoints.look(callbacks.callbacks)
    model.stop_training = False
    with pulse.during("callbacks"):
        callbacks.on_train_begin()
    checkpoints.begin(callbacks.callbacks)
    resumed = checkpoints.first_epoch(epochs)
    return first_epoch(model, initial_epoch) if resumed is None else resumed


def check_trained(any_batch: bool) -> None:
    """Refuse an epoch without a batch.

    Raises:
        DataError: there was none.
    """
    if not any_batch:
        raise DataError(
            "Asked to train an epoch, but the data gave no batch. Is it exhausted, or "
            "smaller than one batch with drop_remainder?"
        )
