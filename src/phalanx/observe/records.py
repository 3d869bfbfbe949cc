"""What happened in a run, one JSON object a line; `docs/records.md` is the schema."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from phalanx.errors import OptionError

VERSION = 1
"""The schema's version; it grows when a reader of the old one would misread the new."""

_OWN = ("v", "t", "kind")

Record = dict[str, Any]
"""One line as read: `v`, `t` (seconds since the epoch), `kind`, and the kind's own fields."""


def records_path(run_dir: str | os.PathLike[str], rank: int) -> Path:
    """The file in a run's directory to which the worker of this rank writes."""
    return Path(run_dir) / "records" / f"worker-{rank}.jsonl"


class RecordWriter:
    """Appends records to a file; every line is whole and on its way when `write` returns.

    A line goes out as one write to a file opened for appending, so on a local file system
    several writers, threads or processes may share one file. A last line that a killed
    process left unfinished is closed first, so it costs no later record.

    Args:
        path: the file; its directory is made, and what is in it stays.
        clock: the time, in seconds since the epoch.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = Path(path)
        self._clock = clock
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: int | None = os.open(
            self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644
        )
        self._start = b"\n" if _is_unfinished(self._file) else b""

    def write(self, kind: str, /, **fields: object) -> None:
        """Append one record.

        Args:
            kind: what happened: "step", "epoch", ...
            **fields: the rest of the record: None, booleans, numbers, strings, NumPy numbers
                and arrays, and lists and string-keyed mappings of these. A number that is not
                finite is written as the string "nan", "inf" or "-inf", which `float` reads.

        Raises:
            OptionError: a field is named `v`, `t` or `kind`, or its value is none of these.
            OSError: the file cannot be written.
            ValueError: the writer is closed.
        """
        if self._file is None:
            raise ValueError(f"The record writer of {self.path} is closed.")
        taken = [name for name in fields if name in _OWN]
        if taken:
            raise OptionError(
                f"A record's field cannot be named {taken[0]!r}, which every record has already. "
                "Give the field another name."
            )
        record: Record = {"v": VERSION, "t": self._clock(), "kind": kind}
        for name, value in fields.items():
            record[name] = _plain(value, name)
        line = json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        start, self._start = self._start, b""
        _write_all(self._file, start + line)

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


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
            record = _parse(line)
            if record is None:
                found.damaged.append(number)
            elif record["v"] > VERSION:
                found.newer.append(number)
            else:
                found.records.append(record)
    return found


def _parse(line: bytes) -> Record | None:
    try:
        record = json.loads(line.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    version, written, kind = (record.get(name) for name in _OWN)
    if type(version) is not int or version < 1:
        return None
    fits = type(written) in (int, float) and isinstance(kind, str)
    return record if fits or version > VERSION else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON.")


def _plain(value: object, name: str) -> object:
    """The value as JSON knows it."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        return [_plain(each, name) for each in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(each, name) for key, each in value.items()}
    raise OptionError(
        f"A record's field {name!r} cannot hold {value!r} ({type(value).__name__}). Give numbers, "
        "strings, booleans, None, NumPy arrays, or lists and string-keyed mappings of these."
    )


def _is_unfinished(file: int) -> bool:
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"


def _write_all(file: int, line: bytes) -> None:
    while line:  # A second turn only when the disk is full, where the error then comes.
        line = line[os.write(file, line) :]
