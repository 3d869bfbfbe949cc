"""The client of the fork server, a process that has imported TensorFlow and forks workers.

The server is `worker/forkserver.py`. Restarts, the commands of a test session and `WorkerPool` use
it. The protocol on the control socket: the server sends READY when its imports are done. A request
is one byte with descriptors: a pipe for `(exit code, time)`, the worker's output, its job (a file
with JSON), and what else the worker is to inherit. The answer is the worker's process id. End of
file means that the client has ended; the server then ends, and its workers with it.

A server that listens at an address forks a server for each client that connects there.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

from phalanx.errors import LaunchError
from phalanx.launcher.process import kill_and_wait

SERVER_MODULE = "phalanx.worker.forkserver"

SERVER_VARIABLE = "PHALANX_FORK_SERVER"
"""Holds the server's settings as JSON: control (a descriptor), address, preload, nice."""

SHARED_VARIABLE = "PHALANX_SHARED_FORK_SERVER"
"""Holds the address (a Unix socket) of a fork server that several launchers share."""

READY = b"r"
PID = struct.Struct("i")
MAX_FDS = 8
"""The most descriptors of one request."""

START_SECONDS = 180.0
"""How long the import of TensorFlow may take."""

_PREFIXES = ("TF_", "XLA_", "OMP_", "KMP_", "KERAS_", "CUDA_", "NVIDIA_", "LD_", "PYTHON")
_PER_WORKER = (
    "TF_CONFIG",
    "CUDA_VISIBLE_DEVICES",
    "PYTHONHASHSEED",
    "PYTHONUNBUFFERED",
    "PYTHONIOENCODING",
)
_NETWORK = "network namespace"


def seen_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """What the imports may read: environment variables, and the network namespace."""
    seen = {
        name: value
        for name, value in environment.items()
        if name.startswith(_PREFIXES) and name not in _PER_WORKER
    }
    with suppress(OSError):
        seen[_NETWORK] = os.readlink("/proc/self/ns/net")
    return seen


def description_path(address: Path) -> Path:
    """The file in which a server that listens at `address` writes what its imports have read."""
    return address.with_name(address.name + ".json")


class ForkServer:
    """A fork server of this process: `start` makes one, `connect` finds a shared one.

    It ends with this process. A fork of this process cannot use it.
    """

    def __init__(
        self,
        control: socket.socket,
        *,
        seen: Mapping[str, str],
        process: subprocess.Popen[bytes] | None = None,
        output: IO[bytes] | None = None,
    ) -> None:
        self._control = control
        self._seen = seen
        self._process = process
        self._output = output
        self._lock = threading.Lock()
        self._ready = False
        self._owner = os.getpid()

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        preload: Sequence[str] = (),
        nice: int = 0,
        address: Path | None = None,
    ) -> ForkServer:
        """Start a server.

        Args:
            command: runs `SERVER_MODULE`, which ignores the arguments. `ps` shows a worker's
                command only if this one is as long.
            env: its environment. With `tied_to_this_process`, the server ends with the thread that
                calls this, even while it imports.
            preload: modules and packages to import besides those that every worker imports.
            nice: the priority of the imports.
            address: where the server listens for other clients.

        Raises:
            OSError: the operating system did not start it.
        """
        control, theirs = socket.socketpair()
        settings = {
            "control": theirs.fileno(),
            "address": str(address or ""),
            "preload": list(preload),
            "nice": nice,
        }
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        with theirs:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env={**env, SERVER_VARIABLE: json.dumps(settings)},
                start_new_session=True,  # Ctrl-C at the terminal is the client's business.
            )
        return cls(control, seen=seen_at_import(env), process=process, output=output)

    @classmethod
    def connect(cls, env: Mapping[str, str]) -> ForkServer | None:
        """The shared server that `env` names, if a worker with `env` can be forked from it."""
        address = Path(env.get(SHARED_VARIABLE, ""))
        seen = seen_at_import(env)
        with suppress(OSError, ValueError):
            if json.loads(description_path(address).read_text()) == seen:
                control = socket.socket(socket.AF_UNIX)
                control.connect(str(address))
                return cls(control, seen=seen)
        return None

    @property
    def pid(self) -> int | None:
        """Its process id; None for a shared server."""
        return None if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether this process can request workers from it."""
        if self._owner != os.getpid() or self._control.fileno() == -1:
            return False
        return self._process is None or self._process.poll() is None

    @property
    def log(self) -> str:
        """What the server itself printed."""
        return "" if self._output is None else read_from(self._output.fileno(), 0)

    def fits(self, env: Mapping[str, str]) -> bool:
        """Whether the imports of a worker with `env` would have read the same."""
        return self._seen == seen_at_import(env)

    def is_ready(self, *, wait_seconds: float = 0.0) -> bool:
        """Whether the imports are done.

        Raises:
            LaunchError: it has ended.
        """
        with self._lock:
            if not self._ready and wait([self._control], wait_seconds):
                self._ready = self._receive(len(READY)) == READY
            return self._ready

    def wait_until_ready(self) -> None:
        """Wait for the end of the imports.

        Raises:
            LaunchError: it has ended, or its imports take too long.
        """
        if not self.is_ready(wait_seconds=START_SECONDS):
            raise self._no_answer()

    def fork(self, fds: Sequence[int]) -> int:
        """Fork a worker that owns copies of `fds`; returns its process id.

        Raises:
            LaunchError: the server has ended.
        """
        self.wait_until_ready()
        with self._lock:
            try:
                socket.send_fds(self._control, [b"f"], list(fds))
            except OSError as error:
                raise self._no_answer() from error
            (pid,) = PID.unpack(self._receive(PID.size))
            return int(pid)

    def close(
        self, timeout: float = 10.0, *, announce: Callable[[str], None] = lambda text: None
    ) -> None:
        """End the server and the workers that are left.

        Args:
            timeout: seconds that it may take to end without SIGKILL.
            announce: prints a message for the user.
        """
        if self._owner != os.getpid() or self._control.fileno() == -1:
            return
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        if self._process is not None:
            try:
                # Before READY it does not read the socket, and has no worker.
                self._process.wait(timeout if self._ready else 0.0)
            except subprocess.TimeoutExpired:
                kill_and_wait({"the fork server for workers": self._process}, announce=announce)
        if self._output is not None:
            self._output.close()

    def _receive(self, size: int) -> bytes:
        self._control.settimeout(START_SECONDS)
        data = b""
        with suppress(OSError):
            data = self._control.recv(size, socket.MSG_WAITALL)
        if len(data) != size:
            raise self._no_answer()
        return data

    def _no_answer(self) -> LaunchError:
        return LaunchError(f"The fork server for workers did not answer.\n{self.log}")


class ForkedWorker:
    """A worker that a fork server has started, in its own session.

    Raises:
        LaunchError: the server has ended.
        OSError: a file or a pipe could not be made.
    """

    def __init__(
        self,
        server: ForkServer,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        output: int,
        main: str = "phalanx.worker.bootstrap",
        fds: Sequence[int] = (),
    ) -> None:
        """Fork it.

        Args:
            server: the fork server.
            command: `python ... -m module arguments`, as a fresh process would be started.
            env: its environment.
            output: the descriptor of its standard output and error.
            main: a module; the worker calls `main(arguments, environment)` of it.
            fds: descriptors that it inherits; their numbers there follow its arguments.
        """
        self._server = server
        self._code: int | None = None
        self._ended = 0.0
        self._status: Connection[Any, Any]
        job = {
            "main": main,
            "command": list(command),
            "arguments": list(command)[list(command).index("-m") + 2 :],
            "environment": dict(env),
            "directory": os.getcwd(),
        }
        self._status, status = Pipe(duplex=False)
        with status, tempfile.TemporaryFile("w+") as file:
            json.dump(job, file)
            file.flush()
            self._pid = server.fork([status.fileno(), output, file.fileno(), *fds])

    @property
    def pid(self) -> int:
        """The worker's process id, which is also its group's."""
        return self._pid

    @property
    def ended(self) -> float:
        """When it ended, by the machine's monotonic clock."""
        return self._ended

    @property
    def lost_server(self) -> bool:
        """Whether it ended because the fork server did."""
        return self._code is not None and not self._ended

    @property
    def sentinel(self) -> int:
        """A descriptor that is readable once the worker has ended, until `poll` has seen that."""
        return self._status.fileno()

    def poll(self) -> int | None:
        """The exit code, or None while the worker runs; the server ends what it left behind."""
        if self._code is None and self._status.poll():
            try:
                self._code, self._ended = self._status.recv()
            except EOFError:
                self._code = -signal.SIGKILL  # The server has ended, and its workers with it.
            self._status.close()
        return self._code

    def ask(self, number: signal.Signals) -> None:
        """Send a signal to the worker alone, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the worker and all that it started, unless it has ended."""
        if self.poll() is None:
            try:
                os.killpg(self._pid, number)
            except ProcessLookupError:  # It has not made its own group yet.
                self.ask(number)


def read_from(fd: int, offset: int) -> str:
    """The text of a file that another process writes, whose position must not be moved."""
    return os.pread(fd, os.fstat(fd).st_size - offset, offset).decode(errors="replace")
