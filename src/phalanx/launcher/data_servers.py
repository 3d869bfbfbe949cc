"""The processes of a `tf.data` service next to the workers: a dispatcher, and workers that read.

All of them run on the leading host. They belong to the run, not to an attempt: a worker group that
restarts finds them at the same addresses. One that dies is restarted at its own address, as
TensorFlow's clients expect.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from phalanx.errors import LaunchError
from phalanx.launcher.process import StartProcess, WorkerHandle, WorkerProcess, kill_and_wait
from phalanx.monitoring.durable_files import PRIVATE_DIR

MOST_REPLACEMENTS = 10
"""Of all these processes together, in one run: more than that is no accident."""


def data_server_commands(addresses: Sequence[str], directory: Path) -> dict[str, tuple[str, ...]]:
    """What each process runs, by its name.

    Args:
        addresses: `host:port` of the dispatcher, then of each worker, all on this host.
        directory: where the dispatcher keeps what it must know after a restart.
    """
    start = (sys.executable, "-P", "-m", "phalanx.worker.data_server")
    commands: dict[str, tuple[str, ...]] = {}
    commands["dispatcher"] = (*start, "dispatcher", addresses[0], str(directory))
    for number, address in enumerate(addresses[1:]):
        commands[f"data-{number}"] = (*start, "worker", address, addresses[0])
    return commands


class DataServers:
    """Starts them, looks after them, and ends them."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        environment: Mapping[str, str],
        run_dir: Path,
        announce: Callable[[str], None],
        start: StartProcess = WorkerProcess,
    ) -> None:
        """Prepare; nothing runs yet.

        Args:
            addresses: `host:port` of the dispatcher, then of each worker; empty for no service.
            environment: of every process.
            run_dir: the run's directory; their logs are in `data-service` there.
            announce: says something to the user.
            start: starts a process.
        """
        self._directory = run_dir / "data-service"
        state = self._directory / "state"
        self._commands = data_server_commands(addresses, state) if addresses else {}
        # They read and map on CPUs; a GPU's memory is the training's.
        self._environment = {
            **environment,
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": environment.get("TF_CPP_MIN_LOG_LEVEL", "2"),
        }
        self._environment.pop("TF_CONFIG", None)
        self._announce = announce
        self._start = start
        self._left = MOST_REPLACEMENTS
        self._handles: dict[str, WorkerHandle] = {}

    def __enter__(self) -> DataServers:
        """Start all of them.

        Raises:
            LaunchError: one did not start; those that did were ended again.
        """
        if self._commands:
            self._directory.mkdir(mode=PRIVATE_DIR, parents=True, exist_ok=True)
        try:
            for name in self._commands:
                self._handles[name] = self._start_one(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *reason: object) -> None:
        """End all of them."""
        self.close()

    def poll(self) -> None:
        """Restart what has ended."""
        for name, handle in list(self._handles.items()):
            code = handle.poll()
            if code is None:
                continue
            del self._handles[name]
            ended = f"data server {name} ended with {code}"
            if self._left == 0:
                self._announce(f"{ended}, and no replacement is left: workers read on their own")
                continue
            self._left -= 1
            self._announce(f"{ended}; starting a replacement")
            try:
                self._handles[name] = self._start_one(name)
            except (LaunchError, OSError) as error:  # The training itself is well.
                self._announce(
                    f"the replacement of data server {name} did not start: {error} Workers read on "
                    "their own"
                )

    def close(self) -> None:
        """End all that run; nothing of theirs must be saved."""
        handles = {f"data server {name}": handle for name, handle in self._handles.items()}
        kill_and_wait(handles, announce=self._announce)
        self._handles.clear()

    def _start_one(self, name: str) -> WorkerHandle:
        log = self._directory / f"{name}.log"
        return self._start(self._commands[name], env=self._environment, log=log)
