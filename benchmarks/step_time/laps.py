"""What a block of steps took, on the clock and of the processor."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Lap:
    """Seconds a step: by the clock, and of processor time of the whole process.

    On a quiet machine one computing process spends as much of one as of the other. What
    other programs do on the machine hardly shows in the second.

    Attributes:
        memory: the most bytes that the process ever held in memory, so far.
        written: bytes a step that went to files, where somebody counts them.
    """

    wall: float
    cpu: float
    memory: float = 0.0
    written: float = 0.0


class Laps:
    """Takes the time at the end of each step; cheap enough to be no part of it."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, float]] = []

    def step_ended(self) -> None:
        self._ends.append((time.perf_counter(), time.process_time()))

    def last(self, steps: int, *, of: int) -> Lap:
        """The mean of the last `steps` steps, where `of` were to be taken in all."""
        if len(self._ends) != of:
            raise RuntimeError(f"Expected {of} steps; found {len(self._ends)}.")
        (wall, cpu), (start_wall, start_cpu) = self._ends[-1], self._ends[-1 - steps]
        return Lap(
            wall=(wall - start_wall) / steps,
            cpu=(cpu - start_cpu) / steps,
            memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
        )
