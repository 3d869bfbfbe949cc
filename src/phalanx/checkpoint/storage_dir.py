"""A directory anywhere that fsspec reaches: a path, `memory://`, `s3://`, `gs://`."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec

from phalanx.errors import ConfigurationError
from phalanx.lease.lease_dir import link_part
from phalanx.monitoring.durable_files import move_durably


@dataclass(frozen=True)
class StorageDir:
    """A directory; nothing is made before the first file is written.

    Attributes:
        filesystem: fsspec's.
        path: in the form that the filesystem takes.
    """

    filesystem: Any
    path: str

    @classmethod
    def at(cls, url: str | os.PathLike[str], **options: Any) -> StorageDir:
        """The folder at a path or URL.

        Args:
            url: such as "checkpoints", "s3://bucket/run" or "memory://run".
            **options: for fsspec's file system: keys, endpoint.

        Raises:
            ConfigurationError: nothing here reaches such a URL.
        """
        try:
            filesystem, path = fsspec.core.url_to_fs(os.fspath(url), **options)
        except (ImportError, ValueError) as error:
            raise ConfigurationError(
                f"Cannot reach {os.fspath(url)!r}: {error}. Give a path, or install what reaches "
                "it (s3:// needs s3fs, gs:// needs gcsfs)."
            ) from error
        return cls(filesystem, path)

    def __str__(self) -> str:
        return self.path

    def __truediv__(self, name: str) -> StorageDir:
        return StorageDir(self.filesystem, f"{self.path.rstrip('/')}/{name}")

    def names(self) -> list[str]:
        """The names of what is in it, sorted; none where it does not exist."""
        self.filesystem.invalidate_cache(self.path)
        try:
            with _as_os_error(self.path):
                found = self.filesystem.ls(self.path, detail=False)
        except FileNotFoundError:
            return []
        return sorted(each.rstrip("/").rpartition("/")[2] for each in found)

    def has(self, name: str) -> bool:
        """Whether there is a file of that name.

        Raises:
            OSError: storage does not say. (fsspec's `isfile` takes that for a no.)
        """
        self.filesystem.invalidate_cache(self.path)
        path = (self / name).path
        try:
            with _as_os_error(path):
                return bool(self.filesystem.info(path)["type"] == "file")
        except FileNotFoundError:
            return False

    def read(self, name: str) -> bytes:
        """A file's bytes.

        Raises:
            FileNotFoundError: there is no such file.
            OSError: it cannot be read.
        """
        path = (self / name).path
        with _as_os_error(path):
            content: bytes = self.filesystem.cat_file(path)
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file that is complete or absent.

        Raises:
            OSError: it cannot be written; the previous content is unchanged.
        """
        target = (self / name).path
        if "file" not in _protocols(self.filesystem):
            with _as_os_error(target):
                self.filesystem.makedirs(self.path, exist_ok=True)
                self.filesystem.pipe_file(target, content)  # an upload shows when it is complete
            return
        temporary = self._write_part(target, content)
        try:
            move_durably(temporary, target)
        except BaseException:
            with suppress(OSError):
                os.remove(temporary)
            raise

    def create(self, name: str, content: bytes) -> bool:
        """Create a file that does not exist, in one atomic step; False where it does.

        Object storage does it by a conditional put (If-None-Match on S3).

        Raises:
            OSError: it cannot be created; it can be there all the same.
        """
        target = (self / name).path
        if "file" in _protocols(self.filesystem):
            return link_part(Path(self._write_part(target, content)), Path(target))
        with _as_os_error(target):
            self.filesystem.makedirs(self.path, exist_ok=True)
            try:
                self.filesystem.pipe_file(target, content, mode="create")
            except OSError as error:
                if isinstance(error, FileExistsError) or _is_precondition_failed(error):
                    return False
                raise
            except (NotImplementedError, TypeError, ValueError):  # it knows no such mode
                if self.has(name):
                    return False
                self.filesystem.pipe_file(target, content)
        return True

    def _write_part(self, target: str, content: bytes) -> str:
        """Write a local file next to the one that it becomes."""
        os.makedirs(self.path, exist_ok=True)
        temporary = f"{target}.{uuid.uuid4().hex[:8]}.part"
        try:
            with self.filesystem.open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # a rename may reach the disk before the bytes do
        except BaseException:
            with suppress(OSError):
                os.remove(temporary)
            raise
        return temporary

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with all in it; nothing where there is none."""
        path = (self / name).path
        with suppress(FileNotFoundError), _as_os_error(path):
            self.filesystem.rm(path, recursive=True)


@contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    """Raise what a file system of the network says in its own words as an OSError.

    A server that has ended is botocore's EndpointConnectionError for s3fs, which is none.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{path}: {type(error).__name__}: {error}") from error


def _is_precondition_failed(error: OSError) -> bool:
    """Whether this is how s3fs raises the answer 412 to a conditional put."""
    response = getattr(error.__cause__, "response", None) or {}
    return response.get("Error", {}).get("Code") in ("PreconditionFailed", "412")


def _protocols(filesystem: Any) -> tuple[str, ...]:
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
