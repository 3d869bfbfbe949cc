"""The files of a lease: what storage must be able to do, and how a file system does it."""

from __future__ import annotations

import errno
import os
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class LeaseDir(Protocol):
    """A directory that several processes write to; tests hand in fakes."""

    def names(self) -> list[str]:
        """The names of its files; empty where it does not exist."""

    def read(self, name: str) -> bytes:
        """A file's bytes.

        Raises:
            FileNotFoundError: there is no such file.
            OSError: it cannot be read.
        """

    def create(self, name: str, content: bytes) -> bool:
        """Create a file that does not exist, in one atomic step; False where it does.

        Raises:
            OSError: storage failed. The file can exist all the same.
        """

    def write(self, name: str, content: bytes) -> None:
        """Write a file that is complete or absent.

        Raises:
            OSError: it cannot be written.
        """

    def remove(self, name: str) -> None:
        """Remove a file; no error where there is none.

        Raises:
            OSError: it cannot be removed.
        """


@dataclass(frozen=True)
class LocalLeaseDir:
    """A directory of a file system, local or NFS."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def names(self) -> list[str]:
        """The names of its files; empty where it does not exist."""
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes:
        """A file's bytes."""
        return (self.path / name).read_bytes()

    def create(self, name: str, content: bytes) -> bool:
        """Create a file that does not exist; False where it does."""
        return link_part(_written_part(self.path / name, content), self.path / name)

    def write(self, name: str, content: bytes) -> None:
        """Write a file that is complete or absent."""
        part = _written_part(self.path / name, content)
        try:
            part.replace(self.path / name)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def remove(self, name: str) -> None:
        """Remove a file; no error where there is none."""
        (self.path / name).unlink(missing_ok=True)


_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


def link_part(part: Path, path: Path) -> bool:
    """Give a complete file its name in one atomic step; False where one of that name exists.

    `link` fails where the name exists, on NFS as well, and the file has all its bytes before it
    has its name. A file system without links gets O_EXCL, where a reader can see a part.

    Args:
        part: the file, next to `path`; it is removed.
        path: its name.
    """
    try:
        os.link(part, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _create_without_links(path, part.read_bytes())
    finally:
        with suppress(OSError):
            part.unlink()
    _sync(path.parent)
    return True


def _create_without_links(path: Path, content: bytes) -> bool:
    try:
        with path.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        return False
    return True


def _written_part(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return part


def _sync(directory: Path) -> None:
    with suppress(OSError):  # some network file systems cannot
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
