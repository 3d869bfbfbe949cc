"""Event logs: one JSON object a line, one file for each worker and one for the launcher.

`docs/records.md` describes the format. The launcher writes one too, so nothing here imports NumPy,
TensorFlow or Keras.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from phalanx.cluster.spec import WorkerSpec
from phalanx.errors import ConfigurationError
from phalanx.monitoring.durable_files import PRIVATE_DIR, PRIVATE_FILE
from phalanx.monitoring.events import Event, Record, field_names

_log = logging.getLogger(__name__)

VERSION = 1
"""The schema's version; it grows when a reader of the old one would misread the new."""

OWN_FIELDS = ("v", "t", "kind")
"""What every record has; the rest belongs to its kind."""


def records_path(run_dir: str | os.PathLike[str], rank: int) -> Path:
    """The file in a run's directory to which the worker of this rank writes."""
    return Path(run_dir) / "records" / f"worker-{rank}.jsonl"


def launcher_records_path(run_dir: str | os.PathLike[str]) -> Path:
    """The file in a run's directory to which the launcher writes."""
    return Path(run_dir) / "records" / "launcher.jsonl"


class RecordWriter:
    """Appends records to a file; every line is complete and on its way when `write` returns.

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
        self.path.parent.mkdir(mode=PRIVATE_DIR, parents=True, exist_ok=True)
        self._file: int | None = os.open(
            self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE
        )
        self._start = b"\n" if _is_unfinished(self._file) else b""

    def write(self, kind: str, /, **fields: object) -> None:
        """Append one record.

        Args:
            kind: what happened: "heartbeat", "checkpoint", ...
            **fields: the rest of the record: None, booleans, numbers, strings, NumPy numbers
                and arrays, and lists and string-keyed mappings of these. A number that is not
                finite is written as the string "nan", "inf" or "-inf", which `float` reads.

        Raises:
            ConfigurationError: a field is named `v`, `t` or `kind`, or its value is none of these.
            OSError: the file cannot be written.
            ValueError: the writer is closed.
        """
        if self._file is None:
            raise ValueError(f"The record writer of {self.path} is closed.")
        taken = [name for name in fields if name in OWN_FIELDS]
        if taken:
            raise ConfigurationError(
                f"A record's field cannot be named {taken[0]!r}, which every record has already. "
                "Give the field another name."
            )
        record: Record = {"v": VERSION, "t": self._clock(), "kind": kind}
        for name, value in fields.items():
            record[name] = _plain(value, name)
        line = json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        start, self._start = self._start, b"\n"  # for the next one, if half of this gets out
        _write_all(self._file, start + line)
        self._start = b""

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


def _plain(value: object, name: str) -> object:
    """The value as JSON knows it."""
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays, without importing it
        value = value.tolist()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        return [_plain(each, name) for each in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(each, name) for key, each in value.items()}
    raise ConfigurationError(
        f"A record's field {name!r} cannot hold {value!r} ({type(value).__name__}). Give numbers, "
        "strings, booleans, None, NumPy arrays, or lists and string-keyed mappings of these."
    )


def _is_unfinished(file: int) -> bool:
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"


def _write_all(file: int, line: bytes) -> None:
    while line:  # A second turn only when the disk is full, where the error then comes.
        line = line[os.write(file, line) :]


class EventLog:
    """Appends events to one file; a disk that fails never ends the process.

    The first failure is logged as a warning. Each event is tried, so events are written again
    once there is space.
    """

    def __init__(self, open_writer: Callable[[], RecordWriter]) -> None:
        """Open the file at the first event, with `open_writer`."""
        self._open = open_writer
        self._writer: RecordWriter | None = None
        self._has_warned = False
        self._lock = threading.Lock()

    @classmethod
    def at(cls, path: Path, *, clock: Callable[[], float] = time.time) -> Self:
        """The event log at `path`."""
        return cls(lambda: RecordWriter(path, clock=clock))

    def append(self, event: Event) -> None:
        """Write one event, if possible."""
        self.append_moment(lambda: event)

    def append_moment(self, observe: Callable[[], Event]) -> None:
        """Write the event that `observe` returns, if possible.

        `observe` runs when the file is open and no other thread writes, so that what it observes
        is of the record's time, and records that count something count upwards.
        """
        with self._lock:
            try:
                if self._writer is None:
                    self._writer = self._open()
                event = observe()
                fields = {name: getattr(event, name) for name in field_names(type(event))}
                self._writer.write(event.KIND, **fields)
            except OSError as error:
                if not self._has_warned:
                    _log.warning("cannot write events, the run continues without them: %s", error)
                self._has_warned = True

    def close(self) -> None:
        """Close the file; the next event opens it again."""
        with self._lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None


_logs: dict[tuple[int, str, int], EventLog] = {}


def event_log_of(run_dir: str, rank: int) -> EventLog:
    """The event log of one worker of a run: one object a process."""
    log = EventLog.at(records_path(run_dir, rank))
    return _logs.setdefault((os.getpid(), run_dir, rank), log)


def worker_event_log(environment: Mapping[str, str]) -> EventLog | None:
    """The event log of the worker that `environment` describes; None where it describes none."""
    spec = WorkerSpec.from_environment(environment)
    if spec is None or spec.run_dir is None:
        return None
    return event_log_of(spec.run_dir, spec.rank)


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


class RecordTail:
    """Follows one file of records; `poll` gives the records since the one before.

    A last line that is incomplete yet is waited for. What cannot be read costs itself only,
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


_BYTES = 1 << 16


def records_backwards(path: Path) -> Iterator[dict[str, Any]]:
    """The records in the file's last 64 kB, the last first."""
    try:
        with path.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - _BYTES))
            lines = stream.read().splitlines()
    except OSError:
        return
    for line in reversed(lines):
        record = None
        with suppress(ValueError):
            record = json.loads(line)
        if isinstance(record, dict):
            yield record


def last_record(path: Path, kind: str, *fields: str) -> dict[str, Any] | None:
    """The last record of `kind` with all of `fields`, in the file's last 64 kB; None without."""
    for record in records_backwards(path):
        if record.get("kind") == kind and record.keys() >= set(fields):
            return record
    return None
