"""How a process's life is tied to that of the process which started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

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
