"""Where things lie in a run's directory; launcher and workers both read this map."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class AttemptPaths:
    """The files of one start of the worker group: `<run>/attempts/<k>/`."""

    run: Path
    attempt: int

    @property
    def directory(self) -> Path:
        """The attempt's own directory."""
        return self.run / "attempts" / str(self.attempt)

    def log(self, rank: int) -> Path:
        """All that a worker printed."""
        return self.directory / f"worker-{rank}.log"

    def error(self, rank: int) -> Path:
        """The failure that a worker wrote down before it ended."""
        return self.directory / f"worker-{rank}.error.json"

    def first_step(self, rank: int) -> Path:
        """There once a worker has trained a step of this attempt: the time, and the step."""
        return self.directory / f"worker-{rank}.first_step"

    @classmethod
    def next(cls, run: Path) -> int:
        """The number of the next attempt: a run that was resumed has some already."""
        numbers = [int(p.name) for p in (run / "attempts").glob("*") if p.name.isdigit()]
        return max(numbers, default=-1) + 1

    @property
    def any_first_step(self) -> bool:
        """Whether a worker has trained a step of this attempt."""
        return any(self.directory.glob("worker-*.first_step"))

    def flight(self, rank: int) -> Path:
        """The last things that a worker did; see `phalanx.flight`."""
        return self.directory / f"worker-{rank}.flight"

    def stacks(self, rank: int) -> Path:
        """The stacks that a worker dumps when it gets SIGUSR2."""
        return self.directory / f"worker-{rank}.stacks.txt"


def profile_of(run: Path, name: str, rank: int) -> Path:
    """What the profiler saw on a worker, where TensorBoard's profile page looks for it."""
    return run / "tensorboard" / "plugins" / "profile" / name / f"worker-{rank}.xplane.pb"
