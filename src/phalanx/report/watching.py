"""Following a run as it goes: each look reads only what was written since the one before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from phalanx.report.events import RunEnd
from phalanx.report.live import LiveRun
from phalanx.report.notes import damage_in_words
from phalanx.report.reading import RunReader
from phalanx.report.run_file import read_run_file


class Watched:
    """A run that is looked at again and again.

    Attributes:
        name: its directory's name.
        run: what was heard so far.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.resolve().name
        self.run = LiveRun()
        self._path = path
        self._reader = RunReader(path)

    def look(self) -> None:
        """Take in what was written since the last look."""
        file = read_run_file(self._path)  # Before the records: what they hold is older, or as old.
        self.run.take(self._reader.poll())
        if self.run.end is None and file.exit_code is not None:
            self.run.end = RunEnd(
                t=file.ended or self.run.heard or 0.0,
                rank=None,
                attempt=self.run.attempt,
                fit=None,
                exit_code=file.exit_code,
                report=file.report,
            )

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.run.end is not None

    @property
    def damages(self) -> list[str]:
        """What could not be read; a line that is still being written is not meant."""
        found = [replace(each, unfinished=False) for each in self._reader.damage]
        return [damage_in_words(each) for each in found if each.is_any]
