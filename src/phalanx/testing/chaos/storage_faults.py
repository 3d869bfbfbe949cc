"""File systems that break as planned: `faulty+file://`, `faulty+memory://`, `faulty+s3://` ...

Each wraps the real one of that name and passes everything through, but for the writes
that a fault hits. What reads and writes through fsspec needs to know nothing of it.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import fsspec
from fsspec.implementations.dirfs import DirFileSystem

from phalanx.testing.chaos import fault_types as known
from phalanx.testing.chaos.fault_types import FailWrites, Plan, SlowWrites, VanishingDirectory
from phalanx.testing.chaos.injector import Marks

_MIDWAY = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""What a disk says when bytes are on their way, not when the file is opened."""

Refused = OSError | None


class FaultyDisk:
    """Counts this process's writes, and knows what is planned for which."""

    def __init__(
        self, plan: Plan, rank: int, marks: Marks, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Count from the next write on."""
        self._marks = marks
        self._sleep = sleep
        self._rank = rank
        self._faults = [
            (f"{number}-{type(fault).__name__}-worker-{rank}", fault)
            for number, fault in enumerate(plan)
            if isinstance(fault, known.StorageFault) and fault.worker in (None, rank)
        ]
        self._drawn: dict[str, bool] = {}
        self._writes = 0
        self._lock = threading.Lock()

    def before_write(self, filesystem: Any, path: str) -> Refused:
        """Let the faults of one more write happen; returns what it is to be refused with."""
        with self._lock:
            self._writes += 1
            due = [f for name, f in self._faults if self._happens(name, f, self._writes)]
        refused: Refused = None
        for fault in due:
            match fault:
                case SlowWrites():
                    self._sleep(fault.seconds)
                case VanishingDirectory():
                    filesystem.rm(path.rpartition("/")[0], recursive=True)
                case FailWrites():
                    number = getattr(errno, fault.error)
                    refused = OSError(number, f"{os.strerror(number)} (on purpose)", path)
        return refused

    def _happens(self, name: str, fault: known.StorageFault, write: int) -> bool:
        if not fault.hits(write):
            return False
        if name not in self._drawn:
            self._drawn[name] = fault.every_attempt or self._marks.make(name)
        return self._drawn[name]


_disk: FaultyDisk | None = None


def arm(disk: FaultyDisk | None) -> None:
    """Let writes of this process meet `disk`'s faults; None lets them all pass."""
    global _disk
    _disk = disk


class Faulty(DirFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The file system `inner`, on a disk that breaks; paths are its own."""

    inner = "file"
    protocol: str | tuple[str, ...] = "faulty+file"

    def __init__(self, **options: Any) -> None:
        super().__init__(path="/", fs=fsspec.filesystem(self.inner, **options))
        self.path = ""

    def open(self, path: str, mode: str = "rb", *args: Any, **options: Any) -> Any:
        """Open a file; where it is to be written, the disk may refuse."""
        refused = self._refused(path) if set(mode) & set("wax+") else None
        if refused is None:
            return super().open(path, mode, *args, **options)
        if refused.errno not in _MIDWAY or self.inner != "file":
            raise refused
        return TruncatedFile(super().open(path, mode, *args, **options), refused)

    def pipe_file(self, path: str, value: bytes, *args: Any, **options: Any) -> Any:
        """Write a file at once; the disk may refuse."""
        if (refused := self._refused(path)) is not None:
            raise refused
        return super().pipe_file(path, value, *args, **options)

    def _refused(self, path: str) -> Refused:
        return _disk.before_write(self.fs, path) if _disk is not None else None


class FaultyLocal(Faulty):
    """Files of this machine; says "file" too, for who treats those in their own way."""

    protocol = ("faulty+file", "faulty+local", "file")


class FaultyMemory(Faulty):
    """Files in this process's memory."""

    inner = "memory"
    protocol = "faulty+memory"


class FaultyS3(Faulty):
    """Objects in S3."""

    inner = "s3"
    protocol = "faulty+s3"


class FaultyGS(Faulty):
    """Objects in Google Cloud Storage."""

    inner = "gs"
    protocol = "faulty+gs"


class TruncatedFile:
    """An open file that takes half of what is written, and then refuses."""

    def __init__(self, file: Any, refused: OSError) -> None:
        self._file = file
        self._refused = refused

    def write(self, content: bytes) -> int:
        """Write half of it.

        Raises:
            OSError: always.
        """
        self._file.write(content[: len(content) // 2])
        self._file.flush()
        raise self._refused

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> TruncatedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def register() -> None:
    """Let fsspec know the protocols; once is enough, again does no harm."""
    for kind in (FaultyLocal, FaultyMemory, FaultyS3, FaultyGS):
        names = (kind.protocol,) if isinstance(kind.protocol, str) else kind.protocol
        for name in names:
            if name.startswith("faulty+"):
                fsspec.register_implementation(name, kind, clobber=True)
