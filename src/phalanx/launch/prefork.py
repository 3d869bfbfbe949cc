"""Workers forked from a process that stands ready, so that a restart waits for no import.

Where that process is not ready, has ended, or is not what the worker needs, a fresh one is started.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from phalanx.cluster.spec import WORKER_VARIABLE
from phalanx.errors import LaunchError
from phalanx.launch.forkserver import ForkServer
from phalanx.launch.process import WorkerHandle, WorkerProcess
from phalanx.launch.shared_forkserver import connect

MODULE = "phalanx.worker"
WARM_MODULE = "phalanx.worker.prefork"

OF_ONE_WORKER = {WORKER_VARIABLE, "TF_CONFIG", "CUDA_VISIBLE_DEVICES"}
"""What a worker's environment may hold of its own: nothing reads it before the fork."""


class PreforkPool:
    """Starts workers, from the process that stands ready where there is one."""

    def __init__(self) -> None:
        """Begin with none."""
        self._server: ForkServer | None = None
        self._shared: dict[str, str] = {}

    def get_ready(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Start the process that will stand ready, unless there is one.

        Args:
            command: a worker's command; where it is not `python -m phalanx.worker`, none starts.
            env: a worker's environment.
        """
        if MODULE not in command or (self._server is not None and self._server.is_running):
            return
        self.close()
        self._shared = _without_own(env)
        at = list(command).index(MODULE)
        with suppress(OSError):
            warm = (*command[:at], WARM_MODULE, *command[at + 1 :])
            self._server = ForkServer(warm, env=self._shared)

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        reads_terminal: bool = False,
    ) -> WorkerHandle:
        """A worker: a fork if one can be had, else a fresh process, as one with a terminal is.

        Raises:
            LaunchError: the operating system did not start it.
        """
        if self._server is None and MODULE in command and (server := connect(env)) is not None:
            server.wait_until_ready()
            self._server, self._shared = server, _without_own(env)
        can_fork = self._server is not None and _without_own(env) == self._shared
        if self._server is not None and can_fork and not reads_terminal:
            with suppress(LaunchError, OSError):
                if self._server.is_running and self._server.is_ready():
                    return ForkedWorker(self._server, command, env=env, log=log)
        return WorkerProcess(command, env=env, log=log, reads_terminal=reads_terminal)

    def close(self) -> None:
        """End the process that stands ready; workers that it has forked end with it."""
        if self._server is not None:
            self._server.close(patience=0.0)
            self._server = None


class ForkedWorker:
    """A worker that the fork server has started, in a session of its own.

    Raises:
        LaunchError: the server has ended.
        OSError: a file or a pipe could not be made.
    """

    def __init__(
        self, server: ForkServer, command: Sequence[str], *, env: Mapping[str, str], log: Path
    ) -> None:
        self._code: int | None = None
        self._status: Connection[Any, Any]
        job = {
            "command": list(command),
            "arguments": list(command)[list(command).index(MODULE) + 1 :],
            "environment": dict(env),
            "directory": os.getcwd(),
        }
        self._status, status = Pipe(duplex=False)
        with status, log.open("ab") as output, tempfile.TemporaryFile("w+") as file:
            json.dump(job, file)
            file.flush()
            self._pid = server.fork([each.fileno() for each in (status, output, file)])

    @property
    def pid(self) -> int:
        """The worker's process id, which is also its group's."""
        return self._pid

    def poll(self) -> int | None:
        """The exit code, or None while the worker runs; what it left behind has been ended."""
        if self._code is None and self._status.poll():
            try:
                self._code, _ = self._status.recv()
            except EOFError:
                self._code = -signal.SIGKILL  # The server has gone, and took it along.
            self._status.close()
        return self._code

    def ask(self, number: signal.Signals) -> None:
        """Send a signal to the worker alone, unless it is gone."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the worker and all that it started, unless it is gone."""
        if self.poll() is None:
            try:
                os.killpg(self._pid, number)
            except ProcessLookupError:  # It has not made its own group yet.
                self.ask(number)


def _without_own(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in OF_ONE_WORKER}
