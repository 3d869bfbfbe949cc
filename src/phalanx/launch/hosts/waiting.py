"""A wait for another host that says now and then for whom."""

from __future__ import annotations

from collections.abc import Callable

from phalanx.launch.supervise import Clock

_TELL_EVERY = 10.0
_AS_IF_TOLD = 9.0
"""Seconds before the wait: the first word comes after one second, as most come within it."""


class Waiting:
    """One wait, from now on."""

    def __init__(self, clock: Clock, announce: Callable[[str], None], timeout: float) -> None:
        """Begin to wait.

        Args:
            clock: the time.
            announce: says something to the user.
            timeout: seconds that it may take.
        """
        self._clock = clock
        self._announce = announce
        self._timeout = timeout
        self._began = clock.now()
        self._told = self._began - _AS_IF_TOLD

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return self._clock.now() - self._began

    @property
    def is_over(self) -> bool:
        """Whether it has taken too long."""
        return self.seconds > self._timeout

    def tell(self, whom: str) -> None:
        """Say for whom, unless that was said a moment ago."""
        now = self._clock.now()
        if now - self._told > _TELL_EVERY:
            self._told = now
            self._announce(f"waiting for {whom}: {now - self._began:.0f} s so far")
