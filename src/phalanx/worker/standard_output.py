"""Standard output and error of a worker: a log file on a disk that may fill up."""

from __future__ import annotations

import io
import sys
from typing import Any


class _DroppingFile(io.FileIO):
    """Drops what the disk does not take: a `print` must not end a training."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def survive_full_disk() -> None:
    """Let `print`, progress bars and `logging` continue while the log cannot be written."""
    sys.stdout = sys.__stdout__ = _dropping(sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _dropping(sys.stderr)  # type: ignore[misc]


def _dropping(stream: Any) -> io.TextIOWrapper:
    stream.flush()
    return io.TextIOWrapper(
        _DroppingFile(stream.fileno(), "w", closefd=False),
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        write_through=True,  # as PYTHONUNBUFFERED does
    )
