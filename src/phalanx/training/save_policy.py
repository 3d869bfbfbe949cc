"""When a checkpoint is due: by steps, by epochs, by the chief's clock, or as the best so far."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from phalanx.callbacks.triggers import Trigger
from phalanx.checkpoint.retention import Mode

_log = logging.getLogger(__name__)


class SavePolicy:
    """Says whether a checkpoint is due.

    All workers know the same, except the clock, for which they have to ask the chief.
    """

    def __init__(
        self, every: Trigger, best: tuple[str, Mode] | None, *, clock: Callable[[], float]
    ) -> None:
        """Begin now.

        Args:
            every: when a checkpoint falls due.
            best: the metric whose best epoch is saved too, and whether less or more is better.
            clock: seconds, increasing.
        """
        self._every = every
        self._best = best
        self._clock = clock
        self._saved_at = clock()
        self._saved_step = 0
        self._values: dict[int, float] = {}

    @property
    def best(self) -> float | None:
        """The least value so far of the metric that `best` goes by, its sign turned where more is
        better; None where there is none.
        """
        return min(self._values.values(), default=None)

    def restored(self, step: int, best: float | None) -> None:
        """Training resumes from `step`, where `best` had that value."""
        self.saved(step)
        self._values = {} if best is None else {step: best}

    def failed(self, step: int) -> None:
        """The state after `step` could not be saved, so it is not the best that there is."""
        self._values.pop(step, None)

    def saved(self, step: int) -> None:
        """The state after `step` is saved, or was restored."""
        self._saved_step = step
        self._saved_at = self._clock()

    def is_due_after_step(self, step: int) -> bool:
        """Whether `step` is at or after the next step to save at."""
        every = int(self._every.every)
        return self._every.unit == "steps" and step // every > self._saved_step // every

    def steps_until_due(self, step: int) -> int | None:
        """Steps after `step` until the next one to save at; None where steps do not decide."""
        if self._every.unit != "steps":
            return None
        every = int(self._every.every)
        return max(1, (self._saved_step // every + 1) * every - step)

    def is_due_after_epoch(self, epoch: int, step: int) -> bool:
        """Whether the end of `epoch` (from 0), at `step`, is to be saved."""
        if self._every.unit == "epochs":
            return (epoch + 1) % int(self._every.every) == 0
        return self.is_due_after_step(step)

    def is_due_by_the_clock(self) -> bool:
        """Whether so many seconds have passed, by this worker's clock."""
        waited = self._clock() - self._saved_at
        return self._every.unit == "seconds" and waited >= self._every.every

    def is_best(self, logs: Mapping[str, Any], step: int) -> bool:
        """Whether an epoch with these logs, which ends at `step`, is the best so far."""
        if self._best is None:
            return False
        name, mode = self._best
        if name not in logs:
            _log.warning("best goes by %r, which the logs lack: %s", name, sorted(logs))
            return False
        value = float(logs[name]) * (1.0 if mode == "min" else -1.0)
        if math.isfinite(value) and (self.best is None or value < self.best):
            self._values[step] = value
            return True
        return False
