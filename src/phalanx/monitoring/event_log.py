"""Reading a file of records while it grows; each look costs only what came since the last."""

from __future__ import annotations

import os
from pathlib import Path

from phalanx.monitoring.event_parsing import VERSION, Record, parse_line


class RecordTail:
    """Follows one file of records; `poll` gives the records since the one before.

    A last line that is not whole yet is waited for. What cannot be read costs itself only,
    and is kept in mind as in `RecordFile`.

    Attributes:
        damaged: the numbers, from 1, of the lines that are no record.
        newer: the numbers of the lines of a later schema version.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.damaged: list[int] = []
        self.newer: list[int] = []
        self._offset = 0
        self._line = 1
        self._rest = b""

    @property
    def unfinished(self) -> bool:
        """Whether the file ends within a line, so far."""
        return bool(self._rest.strip())

    def poll(self) -> list[Record]:
        """The records that were written since the last call; [] while there is no file.

        Raises:
            OSError: the file is there and cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                fresh = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(fresh)
        *lines, self._rest = (self._rest + fresh).split(b"\n")
        found = []
        for line in lines:
            found += self._record(line)
            self._line += 1
        # No beginning of an object is an object: one that parses lacks its line's end only.
        if self._rest.strip() and parse_line(self._rest) is not None:
            found += self._record(self._rest)
            self._rest = b""
        return found

    def _record(self, line: bytes) -> list[Record]:
        if not line.strip():
            return []
        record = parse_line(line)
        if record is None:
            self.damaged.append(self._line)
        elif record["v"] > VERSION:
            self.newer.append(self._line)
        else:
            return [record]
        return []
