"""What the launcher starts for each `--tracker`.

python -m phalanx.trackers NAME RUN_DIR [--project PROJECT] [--artifacts]
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from phalanx.launcher.parent_death import die_with_launcher
from phalanx.launcher.redaction import redact_text
from phalanx.launcher.trackers import TRACKER_NAMES
from phalanx.trackers.protocol import make_tracker
from phalanx.trackers.sender import Sender


def main(arguments: Sequence[str] | None = None) -> None:
    """Feed the tracker until the run has ended."""
    die_with_launcher(os.environ)
    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    parser = argparse.ArgumentParser(prog="python -m phalanx.trackers")
    parser.add_argument("tracker", choices=TRACKER_NAMES)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--project")
    parser.add_argument("--artifacts", action="store_true")
    requested = parser.parse_args(arguments)
    Sender(
        name=requested.tracker,
        run_dir=requested.run_dir,
        make=partial(make_tracker, requested.tracker),
        follows=True,
        project=requested.project,
        artifacts=requested.artifacts,
    ).run()


class RedactingFormatter(logging.Formatter):
    """Leaves out the passwords that addresses of trackers hold; errors name the address."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, with the traceback of its error."""
        return redact_text(super().format(record))


if __name__ == "__main__":
    main()
