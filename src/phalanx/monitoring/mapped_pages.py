"""The memory behind a flight file, so kept that it outlives the process.

On a local disk it is the file itself, mapped: the kernel has what is written there, also when the
process is killed. Its blocks are claimed at once: a page that finds no room on a full disk would
end the process (SIGBUS). Elsewhere (NFS, Lustre, FUSE), where a page may fail at any time and other
hosts see nothing of a mapping, it is plain memory of which a thread writes what has changed.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from io import RawIOBase
from pathlib import Path
from typing import Protocol

from phalanx.monitoring.flight_format import FILE_SIZE

_LOCAL = {"ext2", "ext3", "ext4", "xfs", "tmpfs", "overlay", "f2fs"}
"""Where a claimed block stays claimed; not on those that write every block to a new place."""

_MOUNTS = Path("/proc/self/mountinfo")
_BLOCK = 4096


class Pages(Protocol):
    """The bytes of a flight file.

    Attributes:
        memory: what is written into.
    """

    @property
    def memory(self) -> mmap.mmap | bytearray:
        """What is written into."""

    def changed(self, begin: int, end: int) -> None:
        """These bytes were written."""

    def publish(self) -> None:
        """Have others see what was written."""

    def close(self) -> None:
        """Publish, and write no more."""


def open_pages(path: Path) -> Pages:
    """The pages of a new file at `path`, all zero.

    Raises:
        OSError: it cannot be made, or there is no room.
    """
    return MappedPages(path) if is_on_local_disk(path) else PublishedPages(path)


class MappedPages:
    """The file itself, mapped into memory."""

    def __init__(self, path: Path) -> None:
        """Make the file, its blocks claimed, under another name until it is complete."""
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        file = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(file, 0, FILE_SIZE)
            self.memory = mmap.mmap(file, FILE_SIZE)
            partial.replace(path)
        except OSError:
            with suppress(OSError):
                partial.unlink()
            raise
        finally:
            os.close(file)

    def changed(self, begin: int, end: int) -> None:
        """The kernel knows."""

    def publish(self) -> None:
        """Others on this host see all at once."""

    def close(self) -> None:
        """The mapping ends with the process: a thread may still be writing."""


class PublishedPages:
    """Plain memory, of which the blocks that have changed are written."""

    def __init__(self, path: Path) -> None:
        """Make the file."""
        self._path = path
        path.write_bytes(b"")
        self.memory = bytearray(FILE_SIZE)
        self._changed = bytearray(FILE_SIZE // _BLOCK + 1)

    def changed(self, begin: int, end: int) -> None:
        """Remember the blocks; another thread may be publishing."""
        self._changed[begin // _BLOCK] = 1
        self._changed[(end - 1) // _BLOCK] = 1

    def publish(self) -> None:
        """Write them; what the disk does not take now is tried again.

        Raises:
            OSError: the disk does not take it.
        """
        # Opened each time: NFS hands over to other hosts where a file is closed.
        with self._path.open("r+b", buffering=0) as file:
            for block in reversed(range(len(self._changed))):  # The header says: all is there.
                if self._changed[block]:
                    self._write(file, block)

    def _write(self, file: RawIOBase, block: int) -> None:
        self._changed[block] = 0  # Before the copy: what is written meanwhile counts again.
        try:
            file.seek(block * _BLOCK)
            file.write(bytes(self.memory[block * _BLOCK : (block + 1) * _BLOCK]))
        except OSError:
            self._changed[block] = 1
            raise

    def close(self) -> None:
        """Publish once more."""
        with suppress(OSError):
            self.publish()


def is_on_local_disk(path: Path, mounts: Path = _MOUNTS) -> bool:
    """Whether `path` is on a file system of this host on which blocks can be claimed."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return False
    home = os.path.realpath(path.parent)
    found, kind = "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = before.split()[4].replace("\\040", " ")
        inside = home == point or home.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(found):
            found, kind = point, after.split()[0]
    return kind in _LOCAL
