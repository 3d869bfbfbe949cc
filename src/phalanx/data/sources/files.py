"""Files by name, pattern or URL: finding them, and their bytes."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from typing import Any

import fsspec
import numpy as np
import tensorflow as tf

from phalanx.data.py_function import python_call
from phalanx.errors import DataError

_TENSORFLOWS = ("gs://", "ram://")
"""What TensorFlow's own file system reads, as it does local paths."""


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


def _glob(name: str) -> list[str]:
    if name.startswith(_TENSORFLOWS):
        return [one for one in tf.io.gfile.glob(name) if not tf.io.gfile.isdir(one)]
    if is_remote(name):
        scheme = name.split("://")[0]
        try:
            files, path = fsspec.core.url_to_fs(name)
            return [f"{scheme}://{one}" for one in files.glob(path) if not files.isdir(one)]
        except OSError as error:
            raise DataError(
                f"Asked to read the file {name}; it cannot be read: {error}."
            ) from error
    name = name.removeprefix("file://")
    return [one for one in glob.glob(name, recursive=True) if os.path.isfile(one)]
