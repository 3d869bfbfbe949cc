"""`os.mkdir` of a directory that a sibling has just made succeeds, as it would have made it itself.

All workers run a script's `os.makedirs("out")`, and on one device that line succeeds once. So it
succeeds on a worker as often as on the sibling that has done it most often in this attempt. A
directory that was there before the run is refused as ever.

Only what the script's own files call counts, not what libraries do: some take a directory that
exists for a lock that another process holds.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from phalanx.cluster.spec import WorkerSpec
from phalanx.launcher.run_layout import AttemptPaths
from phalanx.worker.shared_lines import is_scripts

_PASS_ON = {"os", "pathlib", "shutil", "tarfile", "zipfile"}


class MadeDirectories:
    """The directories that the workers of an attempt have made, noted in a file of the attempt's.

    Args:
        paths: the attempt's directory, which all workers share.
        rank: this worker.
        make: makes a directory, as `os.mkdir` does.
    """

    def __init__(self, paths: AttemptPaths, rank: int, make: Callable[..., None]) -> None:
        self._notes = paths.directory / "directories.jsonl"
        self._rank = rank
        self._make = make

    def make(self, path: str, mode: int) -> None:
        """Make a directory, unless a sibling has, once more than this worker.

        Raises:
            FileExistsError: it was there before, or this worker has made it already.
        """
        name = os.path.abspath(path)
        with FileLock(self._notes.with_suffix(".lock")):
            try:
                self._make(path, mode)
            except FileExistsError:
                if not (os.path.isdir(path) and self._is_ahead(name)):
                    raise
            with self._notes.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps([self._rank, name]) + "\n")

    def _is_ahead(self, name: str) -> bool:
        """Whether a sibling has made the directory more often than this worker."""
        if not self._notes.exists():
            return False
        made = map(json.loads, self._notes.read_text(encoding="utf-8").splitlines())
        times = Counter(rank for rank, path in made if path == name)
        return max(times.values(), default=0) > times[self._rank]


def install(spec: WorkerSpec) -> None:
    """Let this process's `os.mkdir`, and so `os.makedirs` and `Path.mkdir`, know of siblings."""
    if not spec.shares_script or spec.run_dir is None:
        return
    original = os.mkdir
    paths = AttemptPaths(run=Path(spec.run_dir), attempt=spec.attempt)
    made = MadeDirectories(paths, spec.rank, original)

    @functools.wraps(original)
    def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None or not _script_calls():
            original(path, mode, dir_fd=dir_fd)
        else:
            made.make(os.fsdecode(path), mode)

    os.mkdir = mkdir


def _script_calls() -> bool:
    """Whether the line that wants a directory is in no library."""
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__", "").partition(".")[0] in _PASS_ON and frame.f_back:
        frame = frame.f_back
    return is_scripts(frame.f_code.co_filename)
