"""A fork server that several launchers share, as one of them sees it.

Its own half is `worker/shared_forkserver.py`. What TensorFlow reads from the environment while it
is imported must be what the worker's own import would have found; so must the network namespace.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from phalanx.launch.forkserver import ForkServer

SHARED_VARIABLE = "PHALANX_SHARED_FORK_SERVER"
"""Names the Unix socket of a fork server that workers may be forked from."""

_PREFIXES = ("TF_", "XLA_", "OMP_", "KMP_", "KERAS_", "CUDA_", "NVIDIA_", "LD_", "PYTHON")
_OWN = ("TF_CONFIG", "PYTHONHASHSEED", "PYTHONUNBUFFERED", "PYTHONIOENCODING")
_NETWORK = "network namespace"


def seen_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """What of the environment the imports may have seen, and where this process is."""
    seen = {
        name: value
        for name, value in environment.items()
        if name.startswith(_PREFIXES) and name not in _OWN
    }
    with suppress(OSError):
        seen[_NETWORK] = os.readlink("/proc/self/ns/net")
    return seen


def described(address: Path) -> Path:
    """The file in which a server says what its imports saw."""
    return address.with_name(address.name + ".json")


class SharedForkServer(ForkServer):
    """A launcher's own server, forked from the shared one; it ends with the connection."""

    def __init__(self, address: Path) -> None:
        """Connect.

        Raises:
            OSError: nobody listens there.
        """
        self._lock = threading.Lock()
        self._ready = False
        self._owner = os.getpid()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._control = socket.socket(socket.AF_UNIX)
        self._control.connect(str(address))

    @property
    def is_running(self) -> bool:
        """Whether it can be asked for workers."""
        return self._control.fileno() != -1

    def close(self, patience: float = 10.0) -> None:
        """End the connection, and with it the server and its workers."""
        del patience
        if self.is_own and self.is_running:
            self._control.close()
            self._output.close()


def connect(environment: Mapping[str, str]) -> SharedForkServer | None:
    """The shared server that a worker of this environment can be forked from, if there is one."""
    address = environment.get(SHARED_VARIABLE)
    if not address:
        return None
    with suppress(OSError, ValueError):
        if json.loads(described(Path(address)).read_text()) == seen_at_import(environment):
            return SharedForkServer(Path(address))
    return None
