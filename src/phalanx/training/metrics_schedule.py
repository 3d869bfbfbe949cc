"""At which steps the metrics are read: the same steps on every worker.

A reading is a collective, so it cannot depend on one worker's clock. A callback that uses
`logs` at some batches has them read at those; otherwise the chief proposes the next step
at each reading, so that readings cost little and progress still looks alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from phalanx.keras_compat.callback_adapters import LogSchedule
from phalanx.training.log_requirements import LogRequirements

_SECONDS_BETWEEN_READINGS = 0.5


class MetricsSchedule:
    """Decides, equally on every worker, at which steps metrics are read."""

    def __init__(
        self,
        callbacks: Iterable[Any],
        kind: str,
        *,
        shows_progress: bool,
        clock: Callable[[], float],
        everyones: Callable[[LogRequirements], LogRequirements] = lambda own: own,
    ) -> None:
        """Look at the callbacks once; what one worker needs, all workers read.

        Args:
            callbacks: the callbacks of this call.
            kind: "train" or "test".
            shows_progress: whether the chief shows progress between epochs' ends.
            clock: seconds, increasing.
            everyones: gives the requests of all workers, from those of this one.
        """
        requirements = everyones(LogRequirements.of(callbacks, kind, shows_progress=shows_progress))
        self._shows_progress = requirements.shows_progress
        self._counts = [_Count(requirement) for requirement in requirements.every]
        self._clock = clock
        self._seen = 0
        self._due = False
        self._next = 1
        self._last: tuple[int, float] | None = None

    def is_due(self, steps_done: int) -> bool:
        """Whether to read after `steps_done` steps of this epoch; to be asked each time."""
        if steps_done != self._seen:
            due = [count.covers(steps_done - self._seen) for count in self._counts]
            self._due = any(due)
            self._seen = steps_done
        return self._due or (self._shows_progress and steps_done >= self._next)

    @property
    def steps_until_due(self) -> int | None:
        """How many steps the next execution may have: a callback wants logs after the last one."""
        return min((count.left for count in self._counts), default=None)

    @property
    def passed(self) -> list[int]:
        """For each request, the batches since it was last fulfilled."""
        return [count.passed for count in self._counts]

    @passed.setter
    def passed(self, passed: list[int]) -> None:
        if len(passed) == len(self._counts):  # else there are other callbacks now
            for count, batches in zip(self._counts, passed, strict=True):
                count.passed = batches

    def start_epoch(self, done: int = 0) -> None:
        """Steps of an epoch count from 0 again, or from `done`; requests continue through all."""
        self._seen = done
        self._due = False
        self._next = done + 1
        self._last = None

    def propose(self, steps_done: int) -> float:
        """The next step to read at, if this worker is the chief."""
        now = self._clock()
        if self._last is None or steps_done == self._last[0]:
            ahead = 1.0
        else:
            seconds_a_step = (now - self._last[1]) / (steps_done - self._last[0])
            ahead = _SECONDS_BETWEEN_READINGS / max(seconds_a_step, 1e-6)
        self._last = (steps_done, now)
        return float(steps_done + max(1, min(int(ahead), 10_000)))

    def agree(self, next_step: float) -> None:
        """Take over what the chief proposed."""
        self._next = int(next_step)


class _Count:
    """How far it is to the next batch at which one request is due."""

    def __init__(self, requirement: LogSchedule) -> None:
        self._requirement = requirement
        self.passed = requirement.already

    @property
    def left(self) -> int:
        """Steps until the next one; 1 if it counts executions."""
        return 1 if self._requirement.calls else max(1, self._requirement.steps - self.passed)

    def covers(self, steps: int) -> bool:
        self.passed += 1 if self._requirement.calls else steps
        if self.passed < self._requirement.steps:
            return False
        self.passed = 0
        return True
