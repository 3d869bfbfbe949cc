"""The `phalanx` command. Nothing here imports TensorFlow or Keras."""

from __future__ import annotations

import sys

from phalanx.cli.app import app
from phalanx.cli.console import error
from phalanx.errors import PhalanxError


def main() -> None:
    """Run the command line; our own errors become one clear message and exit code 2."""
    try:
        app()
    except PhalanxError as raised:
        error(str(raised))
        sys.exit(2)
