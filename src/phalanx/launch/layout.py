"""Where things lie in a run's directory; launcher and workers both read this map."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class AttemptPaths:
    """The files of one start of the gang: `<run>/attempts/<k>/`."""

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

    def stacks(self, rank: int) -> Path:
        """The stacks that a worker dumps when it gets SIGUSR1."""
        return self.directory / f"worker-{rank}.stacks.txt"
