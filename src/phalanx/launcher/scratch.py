"""Directories of a worker's own, for what the chief alone writes in earnest.

A worker removes its own; what one that was killed has left goes with the worker group.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def scratch_prefix(pid: int) -> str:
    """How the names of a process's directories begin, in the directory for temporary files."""
    return f"phalanx-aside-{pid}-"


def remove_scratch(pids: Iterable[int], temporary: Path | None = None) -> None:
    """Remove the scratch directories of processes that have ended.

    Args:
        pids: the processes' numbers.
        temporary: where temporary files are; the system's place if None.
    """
    with suppress(OSError):  # no directory for temporary files has room: nothing can be removed
        directory = Path(tempfile.gettempdir()) if temporary is None else temporary
        for pid in pids:
            for left in directory.glob(f"{scratch_prefix(pid)}*"):
                shutil.rmtree(left, ignore_errors=True)
