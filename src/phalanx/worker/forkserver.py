"""The process that has TensorFlow imported already and forks workers on request.

Forking is safe as long as TensorFlow's runtime was not started, so nothing here may run
an op. The protocol, and the client's half, are in `launch/forkserver.py`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from phalanx.launch.forkserver import PID, READY
from phalanx.launch.parent_death import die_with_parent

DEAF_TO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What a scheduler may send to every process is for the workers, which end with the server."""


def serve(control_fd: int, *, most_fds: int) -> list[int] | None:
    """Fork a worker for each request until the client closes its end; leave none behind.

    The workers end with the thread that calls this.

    Args:
        control_fd: the control socket's descriptor.
        most_fds: how many descriptors a request hands over.

    Returns:
        In a forked worker, which has a session of its own and the signals' defaults: what was
        handed over, less the pipe for its exit code. In the server, at the end: None.
    """
    control = socket.socket(fileno=control_fd)
    gc.collect()
    gc.freeze()  # The workers' collectors leave the shared pages alone.
    wake_read, wake_write = os.pipe()
    for fd in (wake_read, wake_write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    before = [signal.signal(number, signal.SIG_IGN) for number in DEAF_TO]
    children: dict[int, Connection[Any, Any]] = {}

    server = os.getpid()

    def become_worker(fds: list[int]) -> list[int]:
        die_with_parent(server)
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, handler in zip(DEAF_TO, before, strict=True):
            signal.signal(number, handler)
        control.close()
        for writer in children.values():
            writer.close()
        for fd in (wake_read, wake_write, fds[0]):
            os.close(fd)
        return fds[1:]

    control.sendall(READY)
    with contextlib.ExitStack() as undo:
        undo.callback(_end_all, children)
        while True:
            ready, _, _ = select.select([control_fd, wake_read], [], [])
            if wake_read in ready:
                os.read(wake_read, 4096)
                _reap(children)
            if control_fd in ready:
                _, fds, _, _ = socket.recv_fds(control, 1, most_fds)
                if not fds:
                    return None
                pid = os.fork()
                if pid == 0:
                    undo.pop_all()  # They are the server's.
                    return become_worker(fds)
                for fd in fds[1:]:
                    os.close(fd)
                children[pid] = Connection(fds[0], readable=False)
                control.sendall(PID.pack(pid))


def in_the_background(work: Callable[[], None], nice: int) -> None:
    """Do `work` in a thread that gives way to others; the process itself may not come back up."""

    def run() -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
        work()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def _end_all(children: dict[int, Connection[Any, Any]]) -> None:
    for pid in children:
        kill_group(pid)


def kill_group(pid: int) -> None:
    """SIGKILL to worker `pid` and to all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    # It may not have made its own group yet.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _reap(children: dict[int, Connection[Any, Any]]) -> None:
    for pid in list(children):
        # WNOWAIT: it keeps its id until what it started is ended too.
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        with children.pop(pid) as writer, contextlib.suppress(OSError):
            writer.send((os.waitstatus_to_exitcode(status), time.monotonic()))
