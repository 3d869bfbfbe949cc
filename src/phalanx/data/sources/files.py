"""Files by name, pattern or URL: finding them, and their bytes."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fsspec
import numpy as np
import tensorflow as tf

from phalanx.data.fingerprint import content_digest
from phalanx.data.py_function import python_call
from phalanx.errors import DataError

_TENSORFLOWS = ("gs://", "ram://")
"""What TensorFlow's own file system reads, as it does local paths."""


_AT_ONCE = 16
_TIMES_OF_CHANGE = (
    "ETag", "etag", "Content-MD5", "Last-Modified", "LastModified", "last_modified", "md5Hash",
    "generation", "updated", "mtime", "modified", "created",
)  # fmt: skip
"""What fsspec's file systems call the mark of a version."""


def is_file_pattern(given: Any) -> bool:
    """Whether `given` is a path, or a list of paths."""
    if isinstance(given, (str, os.PathLike)):
        return True
    return (
        isinstance(given, (list, tuple))
        and len(given) > 0
        and all(isinstance(one, (str, os.PathLike)) for one in given)
    )


def expand_files(given: Any) -> list[str]:
    """A path, or a list of paths, as text."""
    several = given if isinstance(given, (list, tuple)) else [given]
    return [os.path.expanduser(os.fspath(one)) for one in several]


def matching(given: Any) -> tuple[str, ...]:
    """The files that a pattern, a URL or a list of them names, sorted, none twice.

    Raises:
        DataError: one of them matches no file.
    """
    found: set[str] = set()
    for name in expand_files(given):
        files = _glob(name)
        if not files:
            raise DataError(
                f"Asked for the files {name}; found none. Look at the path; * stands for any part "
                "of one name, ** for any folders."
            )
        found.update(files)
    return tuple(sorted(found))


def is_remote(name: str) -> bool:
    """Whether fsspec must read a file, since TensorFlow cannot."""
    return "://" in name and not name.startswith((*_TENSORFLOWS, "file://"))


def read_whole(name: str) -> bytes:
    """The bytes of a file.

    Raises:
        DataError: it cannot be read.
    """
    try:
        if name.startswith(_TENSORFLOWS):
            with tf.io.gfile.GFile(name, "rb") as file:
                return bytes(file.read())
        with fsspec.open(name, "rb") as file:
            return bytes(file.read())
    except (OSError, tf.errors.OpError) as error:
        raise DataError(f"Asked to read the file {name}; it cannot be read: {error}.") from error


def stamps(names: Sequence[str], *, by_tensorflow: bool = False) -> tuple[Any, ...]:
    """For each file its path, its size and its time of change; without a time, its content.

    Args:
        names: of the files.
        by_tensorflow: whether TensorFlow's file system reads all URLs, not fsspec.

    Raises:
        DataError: a file cannot be read.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return tuple(pool.map(lambda name: _stamp(name, by_tensorflow=by_tensorflow), names))


def content_stamps(names: Sequence[str]) -> tuple[bytes, ...]:
    """For each file a digest of its content, which is read whole."""
    return tuple(content_digest(read_whole(name)) for name in names)


def read_in_graph(name: tf.Tensor, *, remote: bool) -> tf.Tensor:
    """The bytes of a file as a scalar string; traced."""
    if not remote:
        return tf.io.read_file(name)
    content = python_call(lambda n: read_whole(np.asarray(n).item().decode()), [name], tf.string)
    return tf.ensure_shape(content, [])


def suffix_of(names: Sequence[str]) -> str:
    """The end of the names, in small letters, without ".gz" or ".bz2"; "" where they differ."""
    ends = set()
    for name in names:
        plain = name.lower().removesuffix(".gz").removesuffix(".bz2")
        ends.add(os.path.splitext(plain)[1])
    return ends.pop() if len(ends) == 1 else ""


def _stamp(name: str, *, by_tensorflow: bool) -> tuple[Any, ...]:
    try:
        if is_remote(name) and not by_tensorflow:
            files, path = fsspec.core.url_to_fs(name)
            found = files.info(path)
            marks = [(mark, str(found[mark])) for mark in _TIMES_OF_CHANGE if found.get(mark)]
            size = found.get("size")
        else:
            path = name.removeprefix("file://")
            if "://" in path:
                status = tf.io.gfile.stat(name)
                size, time = status.length, status.mtime_nsec
            else:
                path = os.path.realpath(path)  # a link that leads elsewhere is another file
                local = os.stat(path)
                size, time = local.st_size, local.st_mtime_ns
            marks = [("mtime", time)] if time else []
    except (OSError, tf.errors.OpError) as error:
        raise DataError(f"Asked to read the file {name}; it cannot be read: {error}.") from error
    return (path, size, *marks) if marks else (path, content_digest(read_whole(name)))


def is_tensorflows_file(name: str) -> bool:
    """Whether TensorFlow's file system has a file of this name, which is no pattern then."""
    return bool(tf.io.gfile.exists(name)) and not tf.io.gfile.isdir(name)


def _glob(name: str) -> list[str]:
    """The file of this name, or else those that it matches as a pattern: names may hold [ and ]."""
    if name.startswith(_TENSORFLOWS):
        if is_tensorflows_file(name):
            return [name]
        return [one for one in tf.io.gfile.glob(name) if not tf.io.gfile.isdir(one)]
    if is_remote(name):
        scheme = name.split("://")[0]
        try:
            files, path = fsspec.core.url_to_fs(name)
            if "[" in path and files.isfile(path):
                return [name]
            return [f"{scheme}://{one}" for one in files.glob(path) if not files.isdir(one)]
        except OSError as error:
            raise DataError(
                f"Asked to read the file {name}; it cannot be read: {error}."
            ) from error
    name = name.removeprefix("file://")
    if os.path.isfile(name):
        return [name]
    return [one for one in glob.glob(name, recursive=True) if os.path.isfile(one)]
