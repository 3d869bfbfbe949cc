"""A mark in the run directory: this worker has trained a step since it was started."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


class FirstStep:
    """Listens to the pulse; the mark tells a worker that cannot start from one that failed later.

    Args:
        mark: the file to make; it holds the time and the step.
        clock: seconds since the epoch.
    """

    def __init__(self, mark: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._mark = mark
        self._clock = clock
        self._began: int | None = None
        self._done = False

    def __call__(self, step: int) -> None:
        """Take in the last step trained; what `fit` begins with was trained before."""
        if self._began is None:
            self._began = step
        elif step > self._began and not self._done:
            self._done = True
            with suppress(OSError):  # A full disk ends no training.
                self._mark.write_text(f"{self._clock()} {step}\n")
