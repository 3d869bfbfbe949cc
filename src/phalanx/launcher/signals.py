"""Signals that reach the launcher, kept until the supervisor looks."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable
from types import FrameType
from typing import Any


class SignalCatcher:
    """Collects signals while it is entered, instead of letting them end the launcher.

    A scheduler sends the same signal to all launchers of a run: that counts once.
    """

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self._numbers = tuple(numbers)
        self._received: Counter[tuple[int, int]] = Counter()  # by signal and launcher
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> SignalCatcher:
        for number in self._numbers:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # Under nohup a run is meant to outlive its terminal.
            self._before[number] = signal.signal(number, self._keep)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def first(self) -> int | None:
        """The first signal that came: it names the reason; None when none came."""
        return next((number for number, _ in self._received), None)

    def add(self, number: int, launcher: int) -> None:
        """Count one that reached another launcher of the run; this one is number 0."""
        self._received[number, launcher] += 1

    def count(self) -> int:
        """How many came: of each signal as many as reached one launcher, at the most."""
        most: dict[int, int] = {}
        for (number, _), times in self._received.items():
            most[number] = max(most.get(number, 0), times)
        return sum(most.values())

    def _keep(self, number: int, frame: FrameType | None) -> None:
        self._received[number, 0] += 1
