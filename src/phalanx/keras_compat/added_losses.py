"""Losses that layers add, for each replica of a process apart.

A layer keeps what `add_loss` was given in `_losses`, and forgets it when the model is called again.
TensorFlow traces the replicas of one process in threads: one runs until it waits for the others in
the middle of a forward pass, as in a BatchNormalization over the rows of all, and then the next
one runs. So the second would forget the losses of the first, and use those that come later.

Private name used: `Layer._losses`; guarded by tests/replicas/test_canaries.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_LOSSES = "_losses"
_OF_OTHERS = "_losses_by_replica"


class LossesOfReplica:
    """`Layer._losses`, of the replica whose step is traced."""

    def __init__(self, replica: Callable[[], int]) -> None:
        """Have the losses of the replica that `replica` names, by its number in this process."""
        self._replica = replica

    def __get__(self, layer: Any, owner: Any = None) -> Any:
        if layer is None:
            return self
        if _LOSSES not in vars(layer):  # it is being made
            raise AttributeError(_LOSSES)
        replica = self._replica()
        if replica == 0:
            return vars(layer)[_LOSSES]
        return vars(layer).setdefault(_OF_OTHERS, {}).setdefault(replica, [])

    def __set__(self, layer: Any, losses: Any) -> None:
        vars(layer)[_LOSSES] = losses
