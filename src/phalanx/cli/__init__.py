"""The `phalanx` command. Nothing here imports TensorFlow or Keras."""

from __future__ import annotations

import os
import signal
import sys

from phalanx.cli.app import app
from phalanx.cli.console import error
from phalanx.errors import PhalanxError


def main() -> None:
    """Run the command line; our own errors become one clear message and their exit code."""
    # Where the parent process ignores it, the exit codes of workers would be lost (wait(2)).
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        app()
    except PhalanxError as raised:
        error(str(raised))
        sys.exit(raised.exit_code)
    except FileNotFoundError:
        if _has_working_directory():
            raise
        error("The working directory no longer exists. Change to one that does (cd).")
        sys.exit(2)


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True
