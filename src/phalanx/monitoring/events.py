"""Writing down what happened in a run, one JSON object a line; `docs/records.md` is the schema.

The launcher writes too, so nothing here needs NumPy, TensorFlow or Keras.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from phalanx.errors import ConfigurationError

VERSION = 1
"""The schema's version; it grows when a reader of the old one would misread the new."""

OWN_FIELDS = ("v", "t", "kind")
"""What every record has; the rest belongs to its kind."""

Record = dict[str, Any]
"""One line as read: `v`, `t` (seconds since the epoch), `kind`, and the kind's own fields."""


def records_path(run_dir: str | os.PathLike[str], rank: int) -> Path:
    """The file in a run's directory to which the worker of this rank writes."""
    return Path(run_dir) / "records" / f"worker-{rank}.jsonl"


def launcher_records_path(run_dir: str | os.PathLike[str]) -> Path:
    """The file in a run's directory to which the launcher writes."""
    return Path(run_dir) / "records" / "launcher.jsonl"


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
