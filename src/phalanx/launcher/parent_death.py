"""How a process's life is tied to that of the process which started it.

What a launcher starts runs this before all else, so nothing but the standard library is imported.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, MutableMapping

LAUNCHER_VARIABLE = "PHALANX_LAUNCHER"
"""Hands the launcher's process id to what it starts."""

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def tied_to_this_process(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that ends with this one.

    The kernel ends it with the *thread* that starts it, which must live as long as the process is
    to: a launcher starts all in its main thread.
    """
    return {**environment, LAUNCHER_VARIABLE: str(os.getpid())}


def die_with_launcher(environment: MutableMapping[str, str]) -> None:
    """Have the kernel end this process when its launcher ends; exit at once if it already has.

    Args:
        environment: names the launcher, until here: what this process starts has another parent.
    """
    launcher = environment.pop(LAUNCHER_VARIABLE, None)
    if launcher is not None:
        die_with_parent(int(launcher))


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends, for whatever reason.

    Args:
        parent: the parent's process id, by its own word. `getppid` alone would not do: where the
            parent has ended already, it is the process that has adopted this one.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # It went before the kernel knew.
        os.kill(os.getpid(), signal.SIGKILL)
