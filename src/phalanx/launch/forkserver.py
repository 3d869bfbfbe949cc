"""A process that has TensorFlow imported already and forks workers, as its client sees it.

Its own half is `worker/forkserver.py`. The protocol on the control socket: READY when the imports
are done; then one byte with descriptors in, the new worker's process id out. The first descriptor
is a pipe for `(exit code, time)`. End of file means that the client is gone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence

from phalanx.errors import LaunchError
from phalanx.launch.parent_death import tied_to_this_process

PID = struct.Struct("i")
READY = b"r"

START_SECONDS = 180.0
"""How long the import of TensorFlow may take."""


class ForkServer:
    """A running fork server, which ends with this process."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str]) -> None:
        """Start it.

        Args:
            command: gets the number of the control socket's descriptor as `PHALANX_FORK_SERVER`.
            env: its environment.

        Raises:
            OSError: the operating system did not start it.
        """
        self._lock = threading.Lock()
        self._ready = False
        self._owner = os.getpid()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env=tied_to_this_process({**env, CONTROL_VARIABLE: str(theirs.fileno())}),
                start_new_session=True,  # Ctrl-C at the terminal is the client's business.
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_own(self) -> bool:
        """Whether this process started it, and is no fork of the one that did."""
        return self._owner == os.getpid()

    @property
    def is_running(self) -> bool:
        """Whether it can be asked for workers."""
        return self._control.fileno() != -1 and self._process.poll() is None

    @property
    def log(self) -> str:
        """What the server itself printed."""
        return read_from(self._output.fileno(), 0)

    def is_ready(self) -> bool:
        """Whether the imports are done; does not wait.

        Raises:
            LaunchError: it has ended.
        """
        with self._lock:
            if not self._ready:
                self._control.settimeout(0.0)
                with contextlib.suppress(BlockingIOError):
                    self._ready = self._control.recv(len(READY), socket.MSG_PEEK) == READY
                    self._receive(len(READY))
            return self._ready

    def wait_until_ready(self) -> None:
        """Wait for the end of the imports.

        Raises:
            LaunchError: it has ended.
        """
        with self._lock:
            if not self._ready:
                self._ready = self._receive(len(READY)) == READY

    def fork(self, fds: Sequence[int]) -> int:
        """A new worker that owns copies of `fds`; returns its process id.

        Raises:
            LaunchError: it has ended.
        """
        self.wait_until_ready()
        with self._lock:
            try:
                socket.send_fds(self._control, [b"f"], list(fds))
            except OSError as error:
                raise self._silent() from error
            (pid,) = PID.unpack(self._receive(PID.size))
            return int(pid)

    def close(self, patience: float = 10.0) -> None:
        """End the server; it takes any worker that is left with it.

        Args:
            patience: seconds that it may take to leave on its own.
        """
        if not self.is_own or self._control.fileno() == -1:
            return
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        if not self._ready:
            patience = 0.0  # It does not listen yet, and has no worker.
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()

    def _receive(self, size: int) -> bytes:
        self._control.settimeout(START_SECONDS)
        data = b""
        with contextlib.suppress(OSError):
            data = self._control.recv(size, socket.MSG_WAITALL)
        if len(data) != size:
            raise self._silent()
        return data

    def _silent(self) -> LaunchError:
        return LaunchError(f"The fork server for workers did not answer.\n{self.log}")


CONTROL_VARIABLE = "PHALANX_FORK_SERVER"


def read_from(fd: int, offset: int) -> str:
    """The text of a file that another process writes, whose position must not be moved."""
    return os.pread(fd, os.fstat(fd).st_size - offset, offset).decode(errors="replace")
