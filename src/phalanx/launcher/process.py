"""A handle on one worker process and everything it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from phalanx.errors import UnavailableError
from phalanx.launcher.parent_death import tied_to_this_process


class WorkerHandle(Protocol):
    """What the supervisor needs of a worker; tests hand in fakes."""

    @property
    def pid(self) -> int:
        """The worker's process id on its host, for people to read: `ask` and `signal` reach it."""

    def poll(self) -> int | None:
        """The exit code (minus the signal's number when one killed it); None while it runs."""

    def ask(self, number: signal.Signals) -> None:
        """Send a signal to the worker alone: what it started continues working for it.

        No error if it has ended.
        """

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the worker and its child processes; no error if it has ended."""


StartProcess = Callable[..., WorkerHandle]
"""Starts a process: `WorkerProcess`, or a test's stand-in."""

AFTER_KILL = 10.0
"""Seconds for the kernel to end helper processes after SIGKILL."""
_POLL = 0.01


def kill_and_wait(
    processes: Mapping[str, WorkerHandle | subprocess.Popen[bytes]],
    *,
    announce: Callable[[str], None],
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """End helper processes, and leave those that the kernel does not end in time.

    It cannot end a process that waits for a device or a network file system (state D in `ps`).

    Args:
        processes: by the name that messages show.
        announce: prints a message for the user.
        now: seconds, increasing.
        sleep: waits for some seconds.
    """
    for process in processes.values():
        with suppress(OSError):
            if isinstance(process, subprocess.Popen):
                process.kill()
            else:
                process.signal(signal.SIGKILL)
    until = now() + AFTER_KILL
    running = dict(processes)
    while running := {name: each for name, each in running.items() if each.poll() is None}:
        if now() > until:
            named = ", ".join(f"{name} (process {each.pid})" for name, each in running.items())
            announce(
                f"still there {AFTER_KILL:.0f} s after SIGKILL: {named}. The kernel does not end a "
                "process that waits for a device or a network file system; it is left there"
            )
            return
        sleep(_POLL)


class WorkerProcess:
    """A worker in a session of its own, so that one signal reaches its whole family.

    A session of its own also keeps the terminal's Ctrl-C away from it: the launcher alone
    decides how the worker group ends.

    The launcher's process id is handed over in the environment, so that the worker can end with it.

    With `reads_terminal` it has the launcher's standard input, else an empty one.

    Raises:
        UnavailableError: the operating system did not start it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        cwd: Path | None = None,
        reads_terminal: bool = False,
    ) -> None:
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    list(command),
                    env=tied_to_this_process(env),
                    cwd=cwd,
                    stdin=None if reads_terminal else subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise UnavailableError(f"Could not start {command[0]!r}: {error}.") from error

    @property
    def pid(self) -> int:
        """The worker's process id, which is also its group's."""
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code, or None while the worker runs; what it left behind is ended."""
        if self._process.returncode is not None:
            return self._process.returncode
        # WNOWAIT: the dead worker keeps its id until its family is ended too, so that the
        # signal cannot hit a stranger who was given the same id.
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        self.signal(signal.SIGKILL)
        return self._process.wait()

    def ask(self, number: signal.Signals) -> None:
        """Send a signal to the worker alone, unless it has ended."""
        # Not Popen.send_signal: it would collect a dead worker and leave its family behind.
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the worker and its child processes, unless it has ended."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)
