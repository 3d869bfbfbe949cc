"""How long a step takes as a rule, as the launcher sees it, and how long is far too long."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median

TIMES_AS_LONG = 20.0
"""So many usual steps are far longer than one; a reading of metrics or a retracing is less."""

LEAST_SECONDS = 15.0
MOST_OF_TIMEOUT = 0.5
_INTERVALS = 30
_LEAST_INTERVALS = 3


class Pace:
    """Takes in how far training is, at each look, and keeps the seconds a step of late."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self._recent: deque[float] = deque(maxlen=_INTERVALS)
        self._last: tuple[float, int] | None = None

    def take(self, now: float, steps: Iterable[int | None]) -> None:
        """Take in a look.

        Args:
            now: seconds.
            steps: the last step that each worker has trained.
        """
        step = max((step for step in steps if step is not None), default=None)
        if step is None:
            return
        if self._last is None or step < self._last[1]:
            self._last = now, step
        elif step > self._last[1]:
            self._recent.append((now - self._last[0]) / (step - self._last[1]))
            self._last = now, step

    @property
    def usual(self) -> float | None:
        """Seconds that a step takes; None before enough have been seen."""
        return median(self._recent) if len(self._recent) >= _LEAST_INTERVALS else None

    def patience(self, timeout: float) -> float | None:
        """Seconds without anything new that are worth a word; None where nobody can tell.

        Args:
            timeout: seconds after which the run is ended; 0 for never.
        """
        if self.usual is None:
            return None
        patience = max(TIMES_AS_LONG * self.usual, LEAST_SECONDS)
        return patience if not timeout or patience <= MOST_OF_TIMEOUT * timeout else None
