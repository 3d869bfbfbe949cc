"""Files that are complete or absent, after a crash of the machine too.

A rename is atomic for the processes of a machine that stays up. After a power failure a file system
may show the new name and none of the bytes, or the old name. So the bytes go to disk before the
rename, and the directory after it. All that Phalanx renames into place goes through here, except
what it can make again at no loss, such as a cached sample.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

PRIVATE_DIR = 0o700
"""Permissions of directories that Phalanx makes for a run. Records and logs may hold secrets.

Only new directories get them: the permissions of an existing directory are the user's choice.
"""
PRIVATE_FILE = 0o600
"""Permissions of files that lie outside those directories, or that hold the command."""


def write_durably(path: str | os.PathLike[str], content: str | bytes, *, mode: int = 0o666) -> None:
    """Write a file that is complete or absent.

    Args:
        path: where; what was there stays until the new content is on disk.
        content: all of it.
        mode: its permissions, less the process's umask.

    Raises:
        OSError: it cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = f"{os.fspath(path)}.{uuid.uuid4().hex[:8]}.part"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:
            file.write(data)
        move_durably(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.remove(temporary)
        raise


def move_durably(temporary: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Give a complete file or directory its name, once its bytes are on disk.

    Args:
        temporary: what was written, in the directory of `target`; a directory holds files alone.
        target: its name; a file of that name is replaced.

    Raises:
        OSError: the bytes cannot be written to disk, or the name cannot be given.
    """
    if os.path.isdir(temporary):
        for entry in sorted(Path(temporary).iterdir()):
            _sync_file(entry)
        sync_directory(temporary)
    else:
        _sync_file(temporary)
    os.replace(temporary, target)
    sync_directory(Path(target).parent)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Write a directory's entries to disk, where its file system can."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # some network file systems cannot
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_file(path: str | os.PathLike[str]) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
