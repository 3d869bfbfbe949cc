"""What a `fit` without a `Checkpoint` tells of its progress: nobody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class NoCheckpoints:
    """Stands where `Checkpointing` would, and does nothing."""

    def __init__(self) -> None:
        """There were no epochs before this `fit`."""
        self.logs: dict[str, float] = {}

    def look(self, callbacks: list[Any]) -> None:
        """There is nothing to go on from."""

    def begin(self, callbacks: list[Any]) -> None:
        """No state is kept."""

    def first_epoch(self, epochs: int) -> int | None:
        """Training begins where it was asked to."""
        return None

    def is_to_end(self, begin: int, epochs: int) -> bool:
        """Whether there is an epoch to train."""
        return epochs > begin

    def bring_back(self) -> int:
        """An epoch begins at its first batch."""
        return 0

    def after_batch(self, epoch: int, batch: int, *, done: int, is_last: bool) -> None:
        """Nothing is due."""

    def after_epoch(self, epoch: int, logs: Mapping[str, Any], *, is_stopped: bool) -> None:
        """Nothing is due."""

    def end(self, epoch: int | None, logs: Mapping[str, Any], *, is_stopped: bool) -> None:
        """Nothing is due."""
