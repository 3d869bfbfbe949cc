"""The directory that runs are written to: is it there, writable, and a rename in it atomic?"""

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
    """Whether records and checkpoints can be kept there."""
    place = here.directory
    while not place.exists() and place != place.parent:
        place = place.parent  # it is made when the first run is
    try:
        with tempfile.TemporaryDirectory(prefix=".phalanx-doctor-", dir=place) as scratch:
            trouble = _trouble(Path(scratch))
    except OSError as problem:
        yield failed("directory", f"{place} is not writable: {problem}", f"chmod u+rwx {place}")
        return
    if trouble is not None:
        fix = "keep checkpoints elsewhere: Checkpoint(directory), on a local disk or s3://"
        yield failed("directory", f"{place}: {trouble}", fix)
        return
    free = shutil.disk_usage(place).free
    what = f"{place} is writable, a rename in it is atomic, {free / 2**30:.1f} GiB free"
    yield (
        ok("directory", what)
        if free >= _LEAST
        else warning(
            "directory", what, "remove old runs, or phalanx checkpoint prune DIR --max-to-keep 1"
        )
    )


def _trouble(scratch: Path) -> str | None:
    """What keeps a file from being replaced as a whole."""
    old, new = scratch / "old", scratch / "new"
    old.write_bytes(b"old")
    with open(old, "rb") as reader:
        new.write_bytes(b"new")
        os.replace(new, old)
        if old.read_bytes() != b"new" or new.exists():
            return "a renamed file is not in its place"
        with suppress(OSError):
            if reader.read() != b"old":
                return "whoever reads a file while it is replaced reads something else"
    return None
