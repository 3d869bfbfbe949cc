"""Starts workers, forked from a process that has imported TensorFlow where there is one.

A restart then does not wait for imports. Where that process is not ready, has ended, or is not what
the worker needs, a fresh process starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from phalanx.errors import LaunchError
from phalanx.launcher.forkserver import SERVER_MODULE, ForkedWorker, ForkServer
from phalanx.launcher.parent_death import tied_to_this_process
from phalanx.launcher.process import WorkerHandle, WorkerProcess

MODULE = "phalanx.worker"

NICE = 10
"""The workers that train have priority over the imports."""


class PreforkPool:
    """Starts workers, as forks where possible."""

    def __init__(self, announce: Callable[[str], None] = lambda text: None) -> None:
        """Start without a fork server.

        Args:
            announce: prints a message for the user.
        """
        self._announce = announce
        self._server: ForkServer | None = None

    def prewarm(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Start the fork server, unless there is one.

        Args:
            command: a worker's command; if it is not `python -m phalanx.worker`, none starts.
            env: a worker's environment.
        """
        if MODULE not in command or (self._server is not None and self._server.is_running):
            return
        self.close()
        server = [SERVER_MODULE if word == MODULE else word for word in command]
        with suppress(OSError):
            self._server = ForkServer.start(server, env=tied_to_this_process(env), nice=NICE)

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        reads_terminal: bool = False,
    ) -> WorkerHandle:
        """A worker: a fork if possible, else a fresh process, as one with a terminal always is.

        Raises:
            LaunchError: the operating system did not start it.
        """
        if MODULE in command:
            if self._server is None and (shared := ForkServer.connect(env)) is not None:
                shared.wait_until_ready()
                self._server = shared
            server = self._server
            if server is not None and server.fits(env) and not reads_terminal:
                with suppress(LaunchError, OSError), log.open("ab") as output:
                    if server.is_running and server.is_ready():
                        return ForkedWorker(server, command, env=env, output=output.fileno())
        return WorkerProcess(command, env=env, log=log, reads_terminal=reads_terminal)

    def close(self) -> None:
        """End the fork server and the workers that it has forked."""
        if self._server is not None:
            self._server.close(timeout=0.0, announce=self._announce)
            self._server = None
