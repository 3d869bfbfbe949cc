"""From patterns to names of files that TensorFlow can open, and how these are compressed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import fsspec
import tensorflow as tf

from phalanx.data.sources.files import is_tensorflows_file
from phalanx.errors import ConfigurationError, DataError

Compression = Literal["", "GZIP", "ZLIB"]
_MAGIC: dict[bytes, Compression] = {b"\x1f\x8b": "GZIP"}
_ZLIB = (".zlib", ".zz")


def matching_files(patterns: str | Sequence[str]) -> tuple[str, ...]:
    """The files that the patterns match, sorted by name, each once.

    What TensorFlow's file system does not know (`s3://`, `http://` ...) goes through fsspec: it is
    copied to this machine's temporary directory first.

    Args:
        patterns: names or patterns with `*`, `?` and `[...]`.

    Raises:
        DataError: a pattern matches nothing.
    """
    given = [patterns] if isinstance(patterns, str) else list(patterns)
    if not given:
        raise DataError("Asked for TFRecord files with an empty list. Name at least one file.")
    found: dict[str, str] = {}
    for pattern in given:
        names = _matching(pattern)
        if not names:
            raise DataError(
                f"Asked for TFRecord files that match {pattern!r}; found none. See whether the "
                "directory is there on every worker, and quote the pattern in a shell."
            )
        found.update(names)
    return tuple(found[name] for name in sorted(found))


def _matching(pattern: str) -> dict[str, str]:
    """By the name that sorts it, the name that TensorFlow opens: copies are named otherwise."""
    if _is_known(pattern):
        if is_tensorflows_file(pattern):
            return {pattern: pattern}  # also where [ and ] are part of the name
        return {name: name for name in tf.io.gfile.glob(pattern)}
    scheme = pattern.split("://", 1)[0]
    try:
        filesystem, path = fsspec.core.url_to_fs(pattern)
    except (ImportError, ValueError) as error:
        raise DataError(
            f"Asked for TFRecord files at {pattern!r}, which fsspec cannot open: {error}"
        ) from error
    try:
        names = sorted(filesystem.glob(path)) if "*" in path else [path] * filesystem.exists(path)
        urls = [f"simplecache::{scheme}://{name}" for name in names]
        return dict(zip(names, fsspec.open_local(urls), strict=True)) if urls else {}
    except OSError as error:
        raise DataError(f"Asked to read the file {pattern}; it cannot be read: {error}.") from error


def are_copied(patterns: str | Sequence[str]) -> bool:
    """Whether `matching_files` copies files to this machine."""
    return not all(map(_is_known, [patterns] if isinstance(patterns, str) else patterns))


def _is_known(name: str) -> bool:
    scheme, separator, _ = name.partition("://")
    return not separator or scheme in tf.io.gfile.get_registered_schemes()


def compression_of(files: Sequence[str], requested: str | None) -> Compression:
    """How the files are compressed: as requested, or else by their first bytes and names.

    Raises:
        ConfigurationError: there is no such compression, or the files differ.
    """
    if requested is not None:
        for known in get_args(Compression):
            if requested == known:
                return known  # type: ignore[no-any-return]
        raise ConfigurationError(f"compression must be '', 'GZIP' or 'ZLIB'; found {requested!r}.")
    kinds = {file: _inspect(file) for file in files}
    if len(set(kinds.values())) > 1:
        odd = next(file for file in files if kinds[file] != kinds[files[0]])
        raise ConfigurationError(
            f"TFRecord files of one source must be compressed in the same way; found {files[0]} "
            f"({kinds[files[0]] or 'plain'}) and {odd} ({kinds[odd] or 'plain'}). Give them to two "
            "sources, or say compression=."
        )
    return kinds[files[0]]


def _inspect(file: str) -> Compression:
    if file.endswith(_ZLIB):
        return "ZLIB"
    with tf.io.gfile.GFile(file, "rb") as stream:
        return _MAGIC.get(stream.read(2), "")
