"""What has happened already, so that a fault happens once in a run, across restarts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from phalanx.cluster.spec import WorkerSpec


class Marks:
    """Remembers in a directory, or only for this process where there is none."""

    def __init__(self, directory: Path | None) -> None:
        """Begin with what lies in `directory`."""
        self._directory = directory
        self._made: set[str] = set()

    def make(self, name: str) -> bool:
        """Remember `name`; False if that was done before."""
        if name in self._made:
            return False
        self._made.add(name)
        if self._directory is None:
            return True
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            os.close(os.open(self._directory / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True


def marks_of_run(environment: Mapping[str, str]) -> Marks:
    """The marks in the run's directory; in memory where `phalanx run` started nobody."""
    spec = WorkerSpec.from_environment(environment)
    if spec is None or spec.run_dir is None:
        return Marks(None)
    return Marks(Path(spec.run_dir) / "chaos")
