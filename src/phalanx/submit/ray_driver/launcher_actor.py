"""An actor of Ray in one bundle: starts a launcher process, and reports its status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class LauncherStatus(NamedTuple):
    """The status of a launcher at one poll.

    Attributes:
        code: its exit code (minus the signal's number when one killed it); None while it runs.
        output: its output since the last poll.
    """

    code: int | None
    output: str


class LauncherActor:
    """The actor; Ray ends it with its job."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path()
        self._read = 0

    def address(self) -> str:
        """This node's address, by which the other nodes reach it."""
        import ray

        return str(ray.util.get_node_ip_address())

    def start(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        *,
        log: str,
        python: str | None,
        directory: str | None,
    ) -> None:
        """Start the launcher.

        Args:
            words: of `phalanx`.
            environment: added to this process's own.
            log: the file to which the launcher's output is appended.
            python: the Python executable; None takes this process's own.
            directory: the working directory of the launcher; ignored if it does not exist.
        """
        program = python or sys.executable
        self._log = Path(log)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with open(self._log, "ab", opener=_private) as output:
            self._read = output.tell()
            self._process = subprocess.Popen(
                [
                    *(
                        program,
                        "-m",
                        "phalanx.submit.ray_driver.launcher_process",
                        str(os.getpid()),
                    ),
                    *(program, "-m", "phalanx", *words),
                ],
                env={**os.environ, **environment},
                cwd=directory if directory is not None and Path(directory).is_dir() else None,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def poll(self) -> LauncherStatus:
        """The status of the launcher, and its new output."""
        code = None if self._process is None else self._process.poll()
        with suppress(OSError), self._log.open("rb") as log:
            log.seek(self._read)
            output = log.read()
            self._read += len(output)
            return LauncherStatus(code, output.decode(errors="replace"))
        return LauncherStatus(code, "")

    def signal(self, number: int) -> None:
        """Send the launcher a signal."""
        if self._process is not None:
            self._process.send_signal(number)

    def end(self) -> None:
        """Kill the launcher; the kernel ends its workers."""
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
