"""The process that has TensorFlow imported already and forks workers on request.

Forking is safe as long as TensorFlow's runtime was not started, so nothing here may run
an op. The protocol on the control socket: one byte with the `FDS` descriptors in, the
new worker's process id out; end of file means that the parent is gone.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pkgutil
import select
import signal
import socket
import struct
import time
from multiprocessing.connection import Connection
from typing import Any, NoReturn

FDS = ("channel", "status", "log", "stacks", "dumped")
"""What each request hands over, in this order."""

PID = struct.Struct("i")
READY = b"r"


def serve(control_fd: int) -> None:
    """Preload, then fork workers until the parent closes its end; leave none behind."""
    control = socket.socket(fileno=control_fd)
    _preload()
    gc.collect()
    gc.freeze()  # The workers' collectors leave the shared pages alone.
    wake_read, wake_write = os.pipe()
    for fd in (wake_read, wake_write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, Connection[Any, Any]] = {}
    control.sendall(READY)
    try:
        while True:
            ready, _, _ = select.select([control_fd, wake_read], [], [])
            if wake_read in ready:
                os.read(wake_read, 4096)
                _reap(children)
            if control_fd in ready:
                _, fds, _, _ = socket.recv_fds(control, 1, len(FDS))
                if not fds:
                    return
                pid = os.fork()
                if pid == 0:
                    _become_worker(control, (wake_read, wake_write), children, fds)
                children[pid] = _status_writer(fds)
                control.sendall(PID.pack(pid))
    finally:
        for pid in children:
            kill_group(pid)


def kill_group(pid: int) -> None:
    """SIGKILL to worker `pid` and to all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    # It may not have made its own group yet.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _preload() -> None:
    import keras  # noqa: F401
    import tensorflow as tf

    import phalanx

    # Keras and TensorFlow load much of themselves on first use.
    _ = tf.distribute.MultiWorkerMirroredStrategy, tf.data.Dataset
    for module in pkgutil.walk_packages(phalanx.__path__, "phalanx.", onerror=lambda _: None):
        if "__main__" not in module.name:
            # A module that cannot be imported speaks up where it is used.
            with contextlib.suppress(Exception):
                importlib.import_module(module.name)


def _status_writer(fds: list[int]) -> Connection[Any, Any]:
    for name, fd in zip(FDS, fds, strict=True):
        if name != "status":
            os.close(fd)
    return Connection(fds[FDS.index("status")], readable=False)


def _reap(children: dict[int, Connection[Any, Any]]) -> None:
    for pid in list(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            with children.pop(pid) as writer, contextlib.suppress(OSError):
                writer.send((os.waitstatus_to_exitcode(status), time.monotonic()))


def _become_worker(
    control: socket.socket,
    wakeup: tuple[int, int],
    siblings: dict[int, Connection[Any, Any]],
    fds: list[int],
) -> NoReturn:
    """Turn the forked copy of the server into a worker; never returns."""
    exitcode = 70  # What shows when not even the worker's own reporting worked.
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        for writer in siblings.values():
            writer.close()
        for fd in wakeup:
            os.close(fd)
        channel, status, log, stacks, dumped = fds
        os.close(status)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        from phalanx.testing.worker import work

        exitcode = work(Connection(channel), stacks_fd=stacks, dumped_fd=dumped)
    finally:
        # No destructors, no atexit: they belong to the server, and TensorFlow's may hang.
        os._exit(exitcode)
