"""The fork server of `run_workers`: all of Phalanx is imported, and workers do a test's job."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
from multiprocessing.connection import Connection

from phalanx.launch.forkserver import CONTROL_VARIABLE
from phalanx.worker.forkserver import serve

FDS = ("status", "channel", "log", "stacks", "dumped")
"""What each request hands over, in this order."""


def main() -> None:
    """Preload, then fork workers until the parent closes its end."""
    _preload()
    handed = serve(int(os.environ.pop(CONTROL_VARIABLE)), most_fds=len(FDS))
    if handed is not None:
        _become_worker(*handed)


def _preload() -> None:
    import keras  # noqa: F401
    import tensorflow as tf

    import phalanx

    # Keras and TensorFlow load much of themselves on first use.
    _ = tf.distribute.MultiWorkerMirroredStrategy, tf.data.Dataset
    for module in pkgutil.walk_packages(phalanx.__path__, "phalanx.", onerror=lambda _: None):
        if "__main__" not in module.name:
            # A module that cannot be imported speaks up where it is used.
            with contextlib.suppress(Exception):
                importlib.import_module(module.name)


def _become_worker(channel: int, log: int, stacks: int, dumped: int) -> None:
    exitcode = 70  # What shows when not even the worker's own reporting worked.
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        from phalanx.testing.worker import work

        exitcode = work(Connection(channel), stacks_fd=stacks, dumped_fd=dumped)
    finally:
        # No destructors, no atexit: they belong to the server, and TensorFlow's may hang.
        os._exit(exitcode)
