"""The directory of runs: is it writable, and is a rename in it atomic?"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from phalanx.diagnostics.doctor.machine import MachineInfo
from phalanx.diagnostics.doctor.result import Result, failed, ok, warning

_LEAST = 1 << 30


def check(here: MachineInfo) -> Iterator[Result]:
    """Whether records and checkpoints can be written there."""
    directory = here.directory
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent  # the first run creates it
    try:
        with tempfile.TemporaryDirectory(prefix=".phalanx-doctor-", dir=directory) as scratch:
            trouble = _trouble(Path(scratch))
    except OSError as problem:
        yield failed(
            "directory", f"{directory} is not writable: {problem}", f"chmod u+rwx {directory}"
        )
        return
    if trouble is not None:
        fix = "keep checkpoints elsewhere: Checkpoint(directory), on a local disk or s3://"
        yield failed("directory", f"{directory}: {trouble}", fix)
        return
    free = shutil.disk_usage(directory).free
    what = f"{directory} is writable, a rename in it is atomic, {free / 2**30:.1f} GiB free"
    yield (
        ok("directory", what)
        if free >= _LEAST
        else warning(
            "directory", what, "remove old runs, or phalanx checkpoint prune DIR --max-to-keep 1"
        )
    )


def _trouble(scratch: Path) -> str | None:
    """Why a file cannot be replaced atomically; None if it can."""
    old, new = scratch / "old", scratch / "new"
    old.write_bytes(b"old")
    with open(old, "rb") as reader:
        new.write_bytes(b"new")
        os.replace(new, old)
        if old.read_bytes() != b"new" or new.exists():
            return "a renamed file is not under its new name"
        with suppress(OSError):
            if reader.read() != b"old":
                return "a process that reads a file while it is replaced reads other content"
    return None
