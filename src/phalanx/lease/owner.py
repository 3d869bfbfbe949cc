"""Who owns a lease, and whether that process still runs on this machine."""

from __future__ import annotations

import os
import socket
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A process that owns a lease, or asks for it.

    Attributes:
        host: the name of its host, for people.
        boot: the id of the kernel's start; empty where the system has none.
        pid_namespace: the namespace that `pid` belongs to; empty where the system has none.
        pid: its process id.
        started: when the process started, by the kernel's clock; distinguishes it from a later
            process with the same id.
        token: unique for each lease.
        run: the id of the run that it trains for; empty without a launcher.
        attempt: the attempt of that run.
    """

    host: str
    boot: str
    pid_namespace: str
    pid: int
    started: str
    token: str
    run: str = ""
    attempt: int = 0

    def sees(self, other: Owner) -> bool:
        """Whether both are in one process table, so that process ids mean the same."""
        ours = (self.host, self.boot, self.pid_namespace)
        return all(ours) and ours == (other.host, other.boot, other.pid_namespace)

    def is_next_attempt_after(self, other: Owner) -> bool:
        """Whether a launcher started this one after the other's attempt had ended."""
        return bool(self.run) and self.run == other.run and self.attempt > other.attempt

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}"


def _start_of(pid: int) -> str | None:
    """When a process started; None where it has ended, "" where the system does not say."""
    if sys.platform.startswith("linux"):
        with suppress(OSError, ValueError, IndexError):
            # The name, in parentheses, can contain anything.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return None if fields[0] in "ZX" else fields[19]
    else:
        with suppress(psutil.Error):
            return repr(psutil.Process(pid).create_time())
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:  # it exists, and belongs to another user
        pass
    return ""


@dataclass(frozen=True, kw_only=True)
class ProcessTable:
    """The processes of this machine.

    Attributes:
        start_of: gives the start of a process by its id; None where it has ended, "" where the
            system does not say.
    """

    start_of: Callable[[int], str | None] = field(default=_start_of)

    def is_alive(self, owner: Owner) -> bool:
        """Whether an owner that this machine sees still runs."""
        start = self.start_of(owner.pid)
        return start is not None and (not start or start == owner.started)


def this_process(*, run: str = "", attempt: int = 0) -> Owner:
    """This process, with a new token."""
    pid = os.getpid()
    return Owner(
        host=socket.gethostname(),
        boot=_boot_id(),
        pid_namespace=_pid_namespace(),
        pid=pid,
        started=_start_of(pid) or "",
        token=uuid.uuid4().hex[:16],
        run=run,
        attempt=attempt,
    )


def _boot_id() -> str:
    if not sys.platform.startswith("linux"):
        return str(int(psutil.boot_time()))
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _pid_namespace() -> str:
    if not sys.platform.startswith("linux"):
        return "host"
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""
