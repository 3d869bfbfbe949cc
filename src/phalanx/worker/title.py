"""What `ps`, `top` and `pkill` show for this process."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_STAT = Path("/proc/self/stat")
_NAME = Path("/proc/self/comm")
_ARG_START, _ARG_END = 47, 48  # proc_pid_stat(5), counted from 0


def show_name(name: str) -> str:
    """Show `name`, of 15 letters at most; returns the one before. On Linux only."""
    before = ""
    with suppress(OSError):
        before = _NAME.read_text().strip()
        _NAME.write_text(name)
    return before


def show_command(command: Sequence[str]) -> None:
    """Show `command` in place of this process's own, as far as it is no longer; on Linux only."""
    if not sys.platform.startswith("linux"):
        return
    with suppress(OSError, ValueError, IndexError):
        after_name = _STAT.read_text().rpartition(")")[2].split()
        begin, end = (int(after_name[at - 2]) for at in (_ARG_START, _ARG_END))
        shown = b"".join(word.encode() + b"\0" for word in command)
        if len(shown) <= end - begin:
            ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)
