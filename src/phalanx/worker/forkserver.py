"""The fork server: a process that has imported TensorFlow and forks workers on request.

`python -m phalanx.worker.forkserver`; the protocol and the client are in
`launcher/forkserver.py`. A forked worker does what a fresh process with the job's command does.
Forking is safe as long as TensorFlow's runtime was not started, so nothing here may run an op.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from phalanx.launcher.forkserver import (
    MAX_FDS,
    PID,
    READY,
    SERVER_VARIABLE,
    description_path,
    seen_at_import,
)
from phalanx.launcher.parent_death import die_with_launcher, die_with_parent

TITLE = "phalanx-prefork"

IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What a scheduler may send to every process is for the workers, which end with the server."""


def main() -> None:
    """Import, then fork workers until the client ends; each fork returns here as a worker."""
    die_with_launcher(os.environ)
    settings = json.loads(os.environ.pop(SERVER_VARIABLE))
    _at_priority(settings["nice"], settings["preload"])
    if _holds_a_gpu():
        sys.exit("An import has opened a GPU. CUDA does not survive a fork.")
    before = show_title(TITLE)
    listener = _listen(Path(settings["address"])) if settings["address"] else None
    handed = None
    with suppress(BrokenPipeError, ConnectionResetError):  # The client has ended.
        handed = serve(socket.socket(fileno=settings["control"]), listener)
    if handed is not None:
        show_title(before)
        _work(*handed)


def preload(names: Sequence[str]) -> None:
    """Import what every worker imports, and `names` with their submodules; run no op."""
    import keras  # noqa: F401
    import tensorflow as tf

    import phalanx
    from phalanx.worker import bootstrap, devices, strategy, strategy_override  # noqa: F401

    # Keras and TensorFlow load much of themselves on first use.
    _ = tf.distribute.MultiWorkerMirroredStrategy, tf.data.Dataset, phalanx.enable
    for name in names:
        package = importlib.import_module(name)
        paths = getattr(package, "__path__", ())
        for module in pkgutil.walk_packages(paths, f"{name}.", onerror=lambda _: None):
            if not module.name.endswith("__main__"):
                # A module that cannot be imported raises where it is used.
                with suppress(Exception):
                    importlib.import_module(module.name)


def _at_priority(nice: int, names: Sequence[str]) -> None:
    """Import at this priority, in a thread: no process may raise its priority again."""

    def run() -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
        preload(names)

    if not nice:
        preload(names)
        return
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def _holds_a_gpu() -> bool:
    """Whether an import has opened a GPU."""
    found = []
    for fd in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):  # The directory's own descriptor.
            found.append(os.readlink(fd))
    return any(path.startswith(("/dev/nvidia", "/dev/kfd")) for path in found)


def _listen(address: Path) -> socket.socket:
    description_path(address).write_text(json.dumps(seen_at_import(os.environ)))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen()
    return listener


def serve(control: socket.socket, listener: socket.socket | None = None) -> list[int] | None:
    """Fork a worker for each request until the client closes its end, then end all workers.

    Args:
        control: the control socket.
        listener: where others connect; each connection gets a fork of this process as its server.

    Returns:
        In a forked worker, which has its own session and the default signal handlers: the
        descriptors of its request, without the pipe for its exit code. In the server: None.
    """
    gc.collect()
    gc.freeze()  # The workers' collectors do not touch the shared pages.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED}
    handed = _fork_on_request(control, listener)
    if isinstance(handed, socket.socket):
        handed = _fork_on_request(handed, None)
    if not isinstance(handed, list):
        return None
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, handler in before.items():
        signal.signal(number, handler)
    return handed


def _fork_on_request(
    control: socket.socket, listener: socket.socket | None
) -> list[int] | socket.socket | None:
    """The loop of a server; in a forked worker its descriptors, in a forked server its socket."""
    wake_read, wake_write = os.pipe()
    for fd in (wake_read, wake_write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    server = os.getpid()
    children: dict[int, Connection[Any, Any] | None] = {}

    def fork(status: Connection[Any, Any] | None) -> int:
        pid = os.fork()
        if pid:
            children[pid] = status
            return pid
        die_with_parent(server)
        os.setsid()
        for writer in (status, *children.values()):
            if writer is not None:
                writer.close()
        for each in filter(None, (control, listener)):
            each.close()
        for fd in (wake_read, wake_write):
            os.close(fd)
        return 0

    watched = [each for each in (control, listener, wake_read) if each is not None]
    try:
        control.sendall(READY)
        while True:
            ready, _, _ = select.select(watched, [], [])
            if wake_read in ready:
                os.read(wake_read, 4096)
                _reap(children)
            if listener is not None and listener in ready:
                connection, _ = listener.accept()
                if not fork(None):
                    return connection
                connection.close()
            if control in ready:
                _, fds, _, _ = socket.recv_fds(control, 1, MAX_FDS)
                if not fds:
                    return None
                pid = fork(Connection(fds[0], readable=False))
                if not pid:
                    return fds[1:]
                for fd in fds[1:]:
                    os.close(fd)
                control.sendall(PID.pack(pid))
    finally:
        if os.getpid() == server:
            for pid in children:
                _kill(pid)


def _kill(pid: int) -> None:
    """SIGKILL to process `pid` and all that it started."""
    for kill in (os.killpg, os.kill):  # It may not have made its own group yet.
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _reap(children: dict[int, Connection[Any, Any] | None]) -> None:
    for pid in list(children):
        # WNOWAIT: it keeps its id until what it started has been ended too.
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            continue
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        writer = children.pop(pid)
        if writer is not None:
            with writer, suppress(OSError):
                writer.send((os.waitstatus_to_exitcode(status), time.monotonic()))


def _work(output: int, job_file: int, *inherited: int) -> None:
    """Do this job, to the end of the process."""
    with os.fdopen(job_file) as stream:
        stream.seek(0)
        job = json.load(stream)
    for fd in (1, 2):
        os.dup2(output, fd)
    os.close(output)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["directory"])
    sys.orig_argv = job["command"]
    show_command(job["command"])
    arguments = [*job["arguments"], *map(str, inherited)]
    importlib.import_module(job["main"]).main(arguments, os.environ)


_STAT = Path("/proc/self/stat")
_TITLE = Path("/proc/self/comm")
_ARG_START, _ARG_END = 47, 48  # proc_pid_stat(5), counted from 0


def show_title(title: str) -> str:
    """Set the process title, of at most 15 letters; returns the one before. On Linux only."""
    before = ""
    with suppress(OSError):
        before = _TITLE.read_text().strip()
        _TITLE.write_text(title)
    return before


def show_command(command: Sequence[str]) -> None:
    """Show `command` as this process's own, unless it is longer; on Linux only."""
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
