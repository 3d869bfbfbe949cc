"""Reads the events of a run; `docs/records.md` is the schema, `events.py` writes them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from phalanx.monitoring.events import (
    OWN_FIELDS,
    VERSION,
    Record,
    RecordWriter,
    launcher_records_path,
    records_path,
)

__all__ = [
    "VERSION",
    "Record",
    "RecordFile",
    "RecordWriter",
    "launcher_records_path",
    "read_records",
    "records_path",
]


@dataclass(frozen=True, kw_only=True)
class RecordFile:
    """What a file of records holds.

    Attributes:
        records: every record that could be read, in the order of the file.
        damaged: the numbers, from 1, of the lines that are no record.
        newer: the numbers of the lines that a newer version of Phalanx wrote in a schema
            which this one does not know.
    """

    records: list[Record]
    damaged: list[int]
    newer: list[int]


def read_records(path: str | os.PathLike[str]) -> RecordFile:
    """Read every record that can be read; a damaged line costs itself only.

    Raises:
        OSError: the file is not there, or cannot be read.
    """
    found = RecordFile(records=[], damaged=[], newer=[])
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            record = parse_line(line)
            if record is None:
                found.damaged.append(number)
            elif record["v"] > VERSION:
                found.newer.append(number)
            else:
                found.records.append(record)
    return found


def parse_line(line: bytes) -> Record | None:
    """One line as a record; None if it is none. Its `v` may be newer than `VERSION`."""
    try:
        record = _DECODER.decode(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    version, written, kind = (record.get(name) for name in OWN_FIELDS)
    if type(version) is not int or version < 1:
        return None
    fits = type(written) in (int, float) and isinstance(kind, str)
    return record if fits or version > VERSION else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON.")


_DECODER = json.JSONDecoder(parse_constant=_refuse)  # Once: json.loads would make one a line.
