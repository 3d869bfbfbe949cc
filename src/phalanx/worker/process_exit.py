"""How a worker that fails ends: it says why, and does not wait for anybody."""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from phalanx.errors import PhalanxError
from phalanx.launcher.failure import FailureRecord, boot_id
from phalanx.launcher.log_lines import without_style
from phalanx.worker.error_context import error_context_of
from phalanx.worker.shared_lines import advice_about_files

_OWN_CODE = str(Path(__file__).parent)
_TIMEOUT = 5.0
_LONG = 120
"""Letters: what is longer is not printed twice."""


def exit_code_of(error: BaseException) -> int:
    """The exit code with which Python would end after this exception."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def record_failure(
    error: BaseException,
    *,
    rank: int,
    now: float,
    monotonic: float | None = None,
    step: int | None = None,
    workers: int = 1,
) -> FailureRecord:
    """The failure in words, with the traceback from the user's code on."""
    # Our own errors before the script began say all in their message.
    spoken = isinstance(error, PhalanxError) and not _began(error.__traceback__)
    leaving = spoken or isinstance(error, SystemExit)
    return FailureRecord(
        rank=rank,
        type=type(error).__name__,
        module=type(error).__module__,
        message=_message_of(error),
        traceback="" if leaving else format_traceback(error),
        time=now,
        monotonic=monotonic,
        boot=boot_id(),
        exit_code=exit_code_of(error),
        step=step,
        advice=advice_about_files(error, workers),
    )


def _message_of(error: BaseException) -> str:
    where = error_context_of(error)
    return without_style(str(error) if where is None else f"{where}\n{error}")


def format_traceback(error: BaseException) -> str:
    """The traceback without the frames that led from the launcher to the script."""
    shown = strip_internal_frames(error.__traceback__)
    text = without_style("".join(traceback.format_exception(type(error), error, shown)))
    if (where := error_context_of(error)) is not None and len(where) > _LONG:
        # The error is above the note, in full.
        text = text.replace(f"\n{without_style(where)}\n", f"\n{where.partition(': ')[0]}\n")
    return text


def strip_internal_frames(trace: TracebackType | None) -> TracebackType | None:
    """Drop our frames and runpy's at the top; all of it if the script never began."""
    return _began(trace) or trace


def _began(trace: TracebackType | None) -> TracebackType | None:
    """The first frame of the script's; None if it never began."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "runpy" not in file and not file.startswith(_OWN_CODE):
            return trace
        trace = trace.tb_next
    return None


def exit_without_barrier(code: int) -> NoReturn:
    """End with `code` soon, whatever state the cluster is in.

    The script's own exit functions still run, but TensorFlow's teardown does not: it may
    wait for peers that have ended. Whatever holds the process up has a few seconds.
    """
    timer = threading.Timer(_TIMEOUT, _end, (code,))
    timer.daemon = True
    timer.start()
    _exit_codes.append(code)
    sys.exit(code)


_exit_codes: list[int] = []


def install_exit_guard() -> None:
    """Register what runs after all other exit functions; call before anything else does."""
    atexit.register(_last_exit)


def _last_exit() -> None:
    if _exit_codes:
        _end(_exit_codes[-1])


def _end(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def dump_stacks_on_request(path: Path) -> None:
    """Write every thread's stack to `path` on SIGUSR2, even inside a blocked collective."""
    stream = path.open("a")  # Open for as long as the process lives.
    faulthandler.register(signal.SIGUSR2, file=stream, all_threads=True)
    faulthandler.enable()


def exit_on_sigterm() -> None:
    """Let SIGTERM end the process, as it does by default.

    To be called when the strategy exists: making it installs TensorFlow's preemption
    notifier, which swallows SIGTERM. A Python handler would not do either: it never runs
    while the main thread waits in a collective for a peer that has ended.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
