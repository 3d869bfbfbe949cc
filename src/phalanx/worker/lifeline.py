"""How a worker can be asked for its stacks, and told to end."""

from __future__ import annotations

import faulthandler
import signal
from pathlib import Path


def dump_stacks_on_request(path: Path) -> None:
    """Write every thread's stack to `path` on SIGUSR2, even inside a blocked collective."""
    stream = path.open("a")  # Open for as long as the process lives.
    faulthandler.register(signal.SIGUSR2, file=stream, all_threads=True)
    faulthandler.enable()


def end_at_once_on_sigterm() -> None:
    """Let SIGTERM end the process, as it does by default.

    To be called when the strategy exists: making it installs TensorFlow's preemption
    notifier, which swallows SIGTERM. A Python handler would not do either: it never runs
    while the main thread waits in a collective for a peer that is gone.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
