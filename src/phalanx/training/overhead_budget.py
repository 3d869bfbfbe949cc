"""Which steps are looked at, so that looking stays under a share of the training time."""

from __future__ import annotations

import math
from collections.abc import Callable


class OverheadBudget:
    """Steps 1, 1 + n, 1 + 2n, ...; n grows where a look costs too much.

    Every worker must sample the same steps. So the chief measures, and broadcasts its choice
    in the sampled steps themselves: what it proposes before one holds until the next.
    """

    def __init__(
        self, *, every: int, max_overhead: float | None, clock: Callable[[], float]
    ) -> None:
        """Plan the looks.

        Args:
            every: steps from one look to the next, at least.
            max_overhead: the share of time that looks may add, None for any.
            clock: seconds, increasing.
        """
        self._max_overhead = max_overhead
        self._clock = clock
        self._next = 1
        self._plain_since: tuple[int, float] | None = None
        # Two at least where the cost matters: the plain steps between are the measure.
        self._least = every if max_overhead is None else max(2, every)
        self._interval = self._least

    def steps_until(self, trained: int) -> int:
        """How many steps to run up to and with the next look, after `trained` steps."""
        return max(1, self._next - trained)

    def is_due(self, step: int) -> bool:
        """Whether to look at `step`, counted from 1."""
        return step >= self._next

    @property
    def proposal(self) -> float:
        """Steps from this look to the next, if this worker is the chief."""
        return float(self._interval)

    def record(self, step: int, started: float, interval: float, *, traced: bool = False) -> None:
        """Take note of a look at `step` that began at `started` and has just ended.

        Args:
            step: the step.
            started: the clock before the step.
            interval: what the chief proposed.
            traced: whether its function was traced first, which no later look pays again.
        """
        now = self._clock()
        self._next = step + max(1, int(interval))
        if self._plain_since is not None and not traced:
            self._increase_interval(started, now, steps=step - 1 - self._plain_since[0])
        self._plain_since = (step, now)

    def _increase_interval(self, started: float, now: float, *, steps: int) -> None:
        if steps < 1 or self._max_overhead is None or self._plain_since is None:
            return
        plain = (started - self._plain_since[1]) / steps
        extra = max(0.0, (now - started) - plain)
        needed = extra / (self._max_overhead * max(plain, 1e-9))
        self._interval = max(self._least, math.ceil(needed))
