"""Signals that reach the launcher, kept until the supervisor looks."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from types import FrameType
from typing import Any


class SignalBox:
    """Collects signals while it is entered, instead of letting them end the launcher."""

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self._numbers = tuple(numbers)
        self._received: list[int] = []
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> SignalBox:
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
        return self._received[0] if self._received else None

    def count(self) -> int:
        """How many came."""
        return len(self._received)

    def _keep(self, number: int, frame: FrameType | None) -> None:
        self._received.append(number)
