"""The files that a command reads, found without TensorFlow."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from phalanx.data.sources.file_kinds import IMAGE_ENDINGS, KINDS, SCHEMA_FILE, kind_of
from phalanx.errors import ConfigurationError, DataError

IMAGES = "images"
"""The kind of a directory of images, which is one input file here."""

_TIMES_OF_CHANGE = ("mtime", "ETag", "LastModified", "last_modified", "updated", "created")


@dataclass(frozen=True, kw_only=True)
class InputFile:
    """One file, or a directory of images.

    Attributes:
        path: as `phalanx.data` takes it.
        name: without the directory that all files share, and without its ending.
        size: bytes.
        version: changes when the content does, as far as the file system shows.
        kind: one of `KINDS`, `IMAGES`, or "" for files that only a `--source` can read.
    """

    path: str
    name: str
    size: int
    version: str
    kind: str


def find_files(given: str, *, has_source: bool) -> tuple[InputFile, ...]:
    """The files that a path, a directory, a pattern or a URL names, in the order of their paths.

    Args:
        given: what the user wrote.
        has_source: whether a function of the user's reads them, so that they may be of any kind.

    Raises:
        ConfigurationError: there is none, or there are several kinds.
    """
    import fsspec  # which takes a while, and most commands need none of it

    try:
        system, path = fsspec.core.url_to_fs(given)
        is_directory = system.isdir(path)
        if is_directory:
            found = system.ls(path, detail=False)
        else:  # a name is no pattern where it is that of a file: it may hold [ or *
            found = [path] if system.isfile(path) else system.glob(path)
        files = [one for one in sorted(found) if system.isfile(one) and not _is_hidden(one)]
    except (OSError, ImportError, ValueError) as error:
        raise ConfigurationError(f"Cannot read INPUT {given!r}: {error}.") from error
    known = [one for one in files if kind_of(one)]
    others = [one for one in files if not kind_of(one) and posixpath.basename(one) != SCHEMA_FILE]
    if has_source and is_directory and known and others:
        raise ConfigurationError(
            f"INPUT must be a directory of files that --source reads; found "
            f"{posixpath.basename(known[0])} and {posixpath.basename(others[0])} at {given!r}. "
            "Name its files by a pattern, such as '*.csv'."
        )
    if known:  # those of a pattern are all meant where a function of the user's reads them
        files = sorted(known + others) if has_source else known
    elif not has_source:
        files = []
    if is_directory and not files and (images := _images_below(system, path)):
        return (_as_one(system, given, path, images),)
    if not files:
        raise ConfigurationError(
            f"INPUT must name files that phalanx.data reads ({', '.join(KINDS)}), or a directory "
            f"of them or of images; found none at {given!r}. For other files, give --source."
        )
    kinds = sorted({kind_of(one) or "" for one in files})
    if len(kinds) > 1 and not has_source:
        raise ConfigurationError(
            f"INPUT must be files of one kind; found {' and '.join(kinds)} at {given!r}. Name them "
            f"by a pattern, such as '*{kinds[0]}'."
        )
    top = posixpath.commonpath([posixpath.dirname(one) for one in files])
    return tuple(
        InputFile(
            path=_full_name(system, one),
            name=_stem(posixpath.relpath(one, top)),
            size=int(info.get("size") or 0),
            version=_version(info),
            kind="" if has_source else kinds[0],
        )
        for one, info in ((one, system.info(one)) for one in files)
    )


def assert_unchanged(file: InputFile) -> None:
    """Refuse what was read of a file that is another one than when the command found it.

    Raises:
        DataError: it has changed.
        ConfigurationError: it no longer exists.
    """
    import fsspec

    fsspec.core.url_to_fs(file.path)[0].invalidate_cache()
    now = find_files(file.path, has_source=not file.kind)[0]
    if (now.size, now.version) != (file.size, file.version):
        raise DataError(
            f"{file.path} has changed since the command found it. Run the command again when "
            "nothing writes there; predict needs --restart if parts of this file are complete."
        )


def _as_one(system: Any, given: str, path: str, images: Sequence[str]) -> InputFile:
    """A directory of images; its version is that of all of them."""
    infos = [system.info(one) for one in images]
    below = [
        (posixpath.relpath(one, path), _version(i)) for one, i in zip(images, infos, strict=True)
    ]
    return InputFile(
        path=_full_name(system, path),
        name=posixpath.basename(path.rstrip("/")),
        size=sum(int(info.get("size") or 0) for info in infos),
        version=sha256(repr(below).encode()).hexdigest(),
        kind=IMAGES,
    )


def _images_below(system: Any, path: str) -> list[str]:
    return sorted(one for one in system.find(path) if one.lower().endswith(IMAGE_ENDINGS))


def _full_name(system: Any, path: str) -> str:
    return path if "file" in system.protocol else str(system.unstrip_protocol(path))


def _is_hidden(path: str) -> bool:
    return posixpath.basename(path).startswith(".")


def _stem(name: str) -> str:
    """A name for the output: of `2024/rows.csv.gz` it is `2024-rows`."""
    root, ending = posixpath.splitext(name.removesuffix(".gz").removesuffix(".bz2"))
    if ending.startswith(".tfrecord-"):  # train.tfrecord-00000-of-00004
        root += ending.removeprefix(".tfrecord")
    return root.replace("/", "-")


def _version(info: Any) -> str:
    """What shows a change, the same whether a listing or the file itself gives it.

    Servers may quote an ETag and have fractions of a second in one of the two alone (rclone).
    """
    found = next((info[name] for name in _TIMES_OF_CHANGE if info.get(name)), "")
    if isinstance(found, datetime):
        return found.astimezone(UTC).isoformat(timespec="seconds")
    return str(found).strip('"')
