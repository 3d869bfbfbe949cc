"""What a run with restarts keeps ready: `python -m phalanx.worker.prefork -f script.py ...`.

It has imported all that a worker imports before the script, and forks the workers of the next
attempt. A forked worker continues as a fresh one would: `phalanx.worker` with the same arguments.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from phalanx.launch.forkserver import CONTROL_VARIABLE
from phalanx.launch.parent_death import die_with_launcher
from phalanx.worker.forkserver import in_the_background, serve

NICE = 10
"""The imports give way to the workers that train."""

READY_NAME = "phalanx-ready"

HANDED = ("status", "log", "job")
"""What each request hands over; the job is a file with JSON: command, arguments, environment."""


def main() -> None:
    """Be ready, and become a worker when the launcher asks for one."""
    die_with_launcher(os.environ)
    control = int(os.environ.pop(CONTROL_VARIABLE))
    in_the_background(preload, NICE)
    if _holds_a_gpu():
        return  # CUDA does not survive a fork: the launcher starts fresh processes.
    before = show_name(READY_NAME)
    handed = serve(control, most_fds=len(HANDED))
    if handed is not None:
        show_name(before)
        become_worker(*handed)


def become_worker(log: int, job: int) -> None:
    """Be the worker of this job, to the end of the process."""
    with os.fdopen(job) as stream:
        stream.seek(0)
        asked = json.load(stream)
    for fd in (1, 2):
        os.dup2(log, fd)
    os.close(log)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["directory"])
    sys.orig_argv = asked["command"]
    show_command(asked["command"])
    from phalanx.worker.bootstrap import main as be_worker

    be_worker(asked["arguments"], os.environ)


def preload() -> None:
    """Import what every worker imports; run no op."""
    import keras  # noqa: F401
    import tensorflow as tf

    import phalanx
    from phalanx.worker import bootstrap, devices, strategy, strategy_override  # noqa: F401

    # Keras and TensorFlow load much of themselves on first use.
    _ = tf.distribute.MultiWorkerMirroredStrategy, tf.data.Dataset, phalanx.enable


def _holds_a_gpu() -> bool:
    """Whether an import has opened a GPU."""
    found = []
    for fd in Path("/proc/self/fd").glob("*"):
        try:
            found.append(os.readlink(fd))
        except OSError:
            continue  # The directory's own.
    return any(path.startswith(("/dev/nvidia", "/dev/kfd")) for path in found)


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


if __name__ == "__main__":
    main()
