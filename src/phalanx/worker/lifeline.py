"""How a worker's life is tied to its launcher's, and how it can be asked for its stacks."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def die_with_launcher(launcher: int) -> None:
    """Have the kernel end this process when the launcher is gone, however it went.

    Args:
        launcher: the launcher's process id, as it was when this process started.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != launcher:  # It went before the kernel knew.
        os.kill(os.getpid(), signal.SIGKILL)


def dump_stacks_on_request(path: Path) -> None:
    """Write every thread's stack to `path` on SIGUSR1, even inside a blocked collective."""
    stream = path.open("a")  # Open for as long as the process lives.
    faulthandler.register(signal.SIGUSR1, file=stream, all_threads=True)
    faulthandler.enable()


def end_at_once_on_sigterm() -> None:
    """Let SIGTERM end the process, as it does by default.

    To be called when the strategy exists: making it installs TensorFlow's preemption
    notifier, which swallows SIGTERM. A Python handler would not do either: it never runs
    while the main thread waits in a collective for a peer that is gone.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
