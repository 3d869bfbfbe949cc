"""Following the records of a run: all its files, from the first line on or as they grow."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from phalanx.monitoring.event_log import RecordTail
from phalanx.monitoring.event_parsing import EventFieldError, integer, parse_event
from phalanx.monitoring.events import EVENT_TYPES, Event, Record

_WORKER = re.compile(r"worker-(\d{1,9})\.jsonl")
_LAUNCHER = "launcher.jsonl"
_ATTEMPT_OF = ("worker_start", "attempt_start", "restart", "worker_exit")


@dataclass(frozen=True, kw_only=True)
class CorruptLines:
    """What could not be read of one file.

    Attributes:
        file: its name.
        damaged: numbers of the lines that are no record.
        newer: numbers of the lines that a later version of Phalanx wrote.
        invalid: how many records lack what their kind needs.
        unfinished: whether the file ends within a line.
        error: why the file could not be read (further), if so.
    """

    file: str
    damaged: tuple[int, ...] = ()
    newer: tuple[int, ...] = ()
    invalid: int = 0
    unfinished: bool = False
    error: str | None = None

    @property
    def is_any(self) -> bool:
        """Whether there is something to report."""
        found = (self.damaged, self.newer, self.invalid, self.unfinished, self.error)
        return any(found)


class FileReader:
    """Follows one file of records, and adds each event's attempt and `fit`."""

    def __init__(self, path: Path) -> None:
        found = _WORKER.fullmatch(path.name)
        self.rank = int(found[1]) if found else None
        self._tail = RecordTail(path)
        self._attempt = 0
        self._fit: int | None = None
        self._invalid = 0
        self._error: str | None = None

    @property
    def damage(self) -> CorruptLines:
        """What could not be read so far."""
        return CorruptLines(
            file=self._tail.path.name,
            damaged=tuple(self._tail.damaged),
            newer=tuple(self._tail.newer),
            invalid=self._invalid,
            unfinished=self._tail.unfinished,
            error=self._error,
        )

    def poll(self) -> list[Event]:
        """What was written since the last call."""
        try:
            records = self._tail.poll()
        except OSError as error:
            self._error = error.strerror or str(error)
            return []
        self._error = None
        return [event for record in records if (event := self._event(record)) is not None]

    def _event(self, record: Record) -> Event | None:
        kind = record["kind"]
        if kind not in EVENT_TYPES:
            return None
        if kind in _ATTEMPT_OF:
            self._attempt = integer(record.get("attempt")) or 0
        if kind == "worker_start":
            self._fit = None
        elif kind == "fit_start":
            self._fit = integer(record.get("fit")) or 0
        try:
            event = parse_event(
                EVENT_TYPES[kind],
                record,
                writer_rank=self.rank,
                attempt=self._attempt,
                fit=self._fit,
            )
        except EventFieldError:
            self._invalid += 1
            return None
        if kind == "fit_end":
            self._fit = None
        return event


class RunReader:
    """Follows all files of records of a run, also those that come later."""

    def __init__(self, run: Path) -> None:
        self._directory = run / "records"
        self._files: dict[str, FileReader] = {}

    @property
    def damage(self) -> tuple[CorruptLines, ...]:
        """What could not be read so far, of the files where that is something."""
        found = (file.damage for file in self._files.values())
        return tuple(each for each in found if each.is_any)

    def poll(self) -> list[Event]:
        """What was written since the last call, file by file, the launcher's first."""
        try:
            names = sorted((path.name for path in self._directory.iterdir()), key=_order)
        except OSError:
            names = []
        for name in names:
            if name not in self._files and (name == _LAUNCHER or _WORKER.fullmatch(name)):
                self._files[name] = FileReader(self._directory / name)
        ordered = sorted(self._files, key=_order)
        return [event for name in ordered for event in self._files[name].poll()]


def _order(name: str) -> tuple[int, str]:
    found = _WORKER.fullmatch(name)
    return (int(found[1]) if found else -1, name)
