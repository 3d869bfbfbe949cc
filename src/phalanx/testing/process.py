"""The fork server and its workers as the test process sees them."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import tempfile
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from phalanx.cluster.spec import WORKER_VARIABLE
from phalanx.errors import LaunchError
from phalanx.launch import forkserver
from phalanx.launch.forkserver import read_from
from phalanx.testing.errors import WorkerFailure
from phalanx.testing.worker import Job, Raised, Returned
from phalanx.worker.forkserver import kill_group

_COMMAND = (
    sys.executable,
    "-P",
    "-c",
    "from phalanx.testing.forkserver import main; main()",
)
_TAIL_BYTES = 8192
_TAIL_LINES = 30


class WorkerProcess:
    """One worker: what it reported of its last job, how it ended, what it printed.

    Its output goes to files without a name, so there is nothing on disk to clean up.
    """

    def __init__(self, rank: int, server: ForkServer) -> None:
        self.rank = rank
        self.report: Returned | Raised | None = None
        self.exit: tuple[int, float] | None = None
        self._server = server
        self._is_asked = False
        self._printed_before = 0
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115
        self._channel, channel = Pipe()
        self._status, status = Pipe(duplex=False)
        self._dumped, dumped = Pipe(duplex=False)
        with channel, status, dumped:
            handed = (status, channel, self._log, self._stacks, dumped)
            self.pid = server.fork([each.fileno() for each in handed])

    def start(self, job: Job) -> None:
        """Hand over a job; what was reported and printed before is past."""
        self.report, self._is_asked = None, True
        self._printed_before = os.fstat(self._log.fileno()).st_size
        # A worker that is already dead speaks through its exit status.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channel.send(job)

    @property
    def handles(self) -> list[Connection[Any, Any]]:
        """What becomes readable when there is news from the worker."""
        handles = [] if self.exit is not None else [self._status]
        return [*handles, self._channel] if self._is_asked else handles

    def listen(self) -> None:
        """Take in whatever news there is."""
        exited = self.exit is None and self._status.poll()
        # A dead worker's report is already in the channel: all of it is read after `exited`.
        if self._is_asked and self._channel.poll():
            with contextlib.suppress(EOFError, ConnectionResetError):
                self.report = self._channel.recv()
            self._is_asked = False
        if exited:
            try:
                self.exit = self._status.recv()
            except EOFError:
                raise LaunchError(
                    "The fork server ended while its workers were running.\n" + self._server.log
                ) from None

    @property
    def has_ended_idle(self) -> bool:
        """Whether it has ended while it had nothing to do, when it says nothing either."""
        return self.exit is not None or self._channel.poll()

    @property
    def settled(self) -> bool:
        """Whether nothing more is to be expected of the job."""
        return isinstance(self.report, Returned) or self.exit is not None

    @property
    def failure(self) -> WorkerFailure | None:
        """How it ended badly, if it did. To end at all, unasked, is to end badly."""
        exitcode, ended = self.exit if self.exit is not None else (None, 0.0)
        if isinstance(self.report, Raised):
            return WorkerFailure(
                rank=self.rank,
                type_name=self.report.type_name,
                message=self.report.message,
                traceback=self.report.traceback,
                exitcode=exitcode,
                time=self.report.time,
            )
        if exitcode is None:
            return None
        how = f"exit code {exitcode}"
        if exitcode < 0:
            how = signal.Signals(-exitcode).name
        when = "before" if self.report is None else "after"
        return WorkerFailure(
            rank=self.rank,
            type_name="Died",
            message=f"the process ended by {how} {when} its function returned",
            traceback="",
            exitcode=exitcode,
            time=ended,
        )

    def ask_for_stacks(self) -> None:
        """Let the worker write its threads' stacks."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR2)

    def stacks(self, seconds: float) -> str:
        """The stacks asked for, waiting at most so long for the end of writing."""
        self._dumped.poll(seconds)
        return read_from(self._stacks.fileno(), 0)

    def log_tail(self) -> str:
        """The last lines of what it printed since the job began."""
        fd = self._log.fileno()
        begin = max(self._printed_before, os.fstat(fd).st_size - _TAIL_BYTES)
        text = read_from(fd, begin)
        return "\n".join(text.splitlines()[-_TAIL_LINES:])

    def kill(self) -> None:
        """End it and all it started, whatever they do."""
        kill_group(self.pid)

    def close(self) -> None:
        """See a killed worker gone, and let go of its files."""
        if self.exit is None:
            self._status.poll(10.0)
        for each in (self._channel, self._status, self._dumped, self._log, self._stacks):
            each.close()


class ForkServer(forkserver.ForkServer):
    """The fork server of this process, started once."""

    _shared: ForkServer | None = None
    _sharing = threading.Lock()

    @classmethod
    def shared(cls) -> ForkServer:
        """This process's server, started on first use and ended with the process."""
        with cls._sharing:
            server = cls._shared
            if server is None or not server.is_own or not server.is_running:
                server = cls._shared = cls(_COMMAND, env=_server_environment())
                atexit.register(server.close)
            return server

    @classmethod
    def shared_pid(cls) -> int | None:
        """The process id of this process's server, if there is one."""
        return None if cls._shared is None else cls._shared.pid


def _server_environment() -> dict[str, str]:
    environment = {
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "1",
        **os.environ,
        # Native thread pools would not survive the fork.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    hidden = ("TF_CONFIG", WORKER_VARIABLE)
    return {name: value for name, value in environment.items() if name not in hidden}
