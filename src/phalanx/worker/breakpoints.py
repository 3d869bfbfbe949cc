"""`breakpoint()` in a worker: one of them has the launcher's terminal, the others pass it over.

Workers have no terminal of their own, so pdb would end at once. A script's `breakpoint()` stands in
all workers; those without the terminal go on, and wait in the next collective.
"""

from __future__ import annotations

import fcntl
import logging
import os
import pdb
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any, TextIO

from phalanx.cluster.spec import WorkerSpec

_log = logging.getLogger(__name__)


def set_up_breakpoints(spec: WorkerSpec, environment: Mapping[str, str]) -> None:
    """Make `breakpoint()` right in this worker; PYTHONBREAKPOINT keeps its meaning."""
    if "PYTHONBREAKPOINT" in environment:
        return

    def hook(*args: Any, **kwargs: Any) -> None:
        frame = sys._getframe(1)
        if spec.has_terminal:
            _stop(spec.rank, frame)
        else:
            _pass_over(spec, frame)

    sys.breakpointhook = hook


def _stop(rank: int, frame: FrameType) -> None:
    output = _terminal()
    print(f"worker {rank} stands at {_where(frame)}", file=output, flush=True)
    pdb.Pdb(stdin=sys.stdin, stdout=output, nosigint=True).set_trace(frame)


def _terminal() -> TextIO:
    """Where a person reads: the terminal itself, whose prompts end with no line, or the log."""
    writable = fcntl.fcntl(0, fcntl.F_GETFL) & (os.O_WRONLY | os.O_RDWR)
    return open(0, "w", closefd=False) if os.isatty(0) and writable else sys.stdout


def _pass_over(spec: WorkerSpec, frame: FrameType) -> None:
    _log.warning(
        "breakpoint() at %s is passed over: %s",
        _where(frame),
        f"worker {spec.switches.debug_worker} has the terminal"
        if spec.switches.debug
        else "a worker has no terminal; phalanx run --debug gives it one",
    )


def _where(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
