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


class Timer:
    """Takes the time of a number of steps, by the clock and of the processor."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """From now on."""
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def lap(self, steps: int) -> Lap:
        """A step's mean of the `steps` steps since the start."""
        return Lap(
            wall=(time.perf_counter() - self._wall) / steps,
            cpu=(time.process_time() - self._cpu) / steps,
            memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
        )
