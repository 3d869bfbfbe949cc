"""What a launcher shows, for as long as its reader takes it.

A reader that has ended (`phalanx run ... | head -1`), a full disk or a lost terminal must not end a
training: from then on nothing is shown there. A reader that pauses (`phalanx run ... | less`, or
Ctrl-S in a terminal) must not stop the supervision of workers: the text waits in memory for it.
"""

from __future__ import annotations

import atexit
import os
import select
import threading
from collections import deque
from contextlib import suppress
from typing import Protocol


class Output(Protocol):
    """Where text is shown."""

    def write(self, text: str, /) -> object:
        """Take text."""

    def flush(self) -> None:
        """Pass on what was taken."""


class Showing:
    """Writes to a stream until that fails; raises no `OSError`, and does not wait for a reader."""

    encoding = "utf-8"
    """What `rich` goes by; the stream itself replaces what it cannot encode."""

    def __init__(self, stream: Output | None) -> None:
        """Begin.

        Args:
            stream: standard output or standard error; None where that was closed from the start.
        """
        self._stream = stream
        self._pending: deque[str] = deque()
        self._changing = threading.Lock()
        self._writer: threading.Thread | None = None

    @property
    def is_behind(self) -> bool:
        """Whether text waits for a reader that has paused."""
        return bool(self._pending)

    def write(self, text: str) -> None:
        """Show text, at once if the reader takes it."""
        if self._stream is None:
            return
        with self._changing:
            for piece in _pieces(text):
                if not self._pending and _is_ready(self._stream):
                    self._show(piece)
                else:
                    self._pending.append(piece)
            if self._pending and self._writer is None:
                self._writer = threading.Thread(target=self._show_pending, daemon=True)
                self._writer.start()
                atexit.register(self._writer.join)  # The process ends when all is shown.

    def flush(self) -> None:
        """Nothing waits in the stream: `write` has passed it on."""

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return bool(getattr(self._stream, "isatty", bool)())

    def _show_pending(self) -> None:
        while True:
            self._show(self._pending[0])
            with self._changing:
                self._pending.popleft()
                if not self._pending:
                    self._writer = None
                    return

    def _show(self, text: str) -> None:
        if self._stream is not None:
            try:
                self._stream.write(text)
                self._stream.flush()
            except OSError:
                self._stop(self._stream)

    def _stop(self, stream: Output) -> None:
        """Lead the stream to nowhere: Python flushes it once more when the process ends.

        What it still held would fail there, and make the exit code 120.
        """
        self._stream = None
        with suppress(OSError, AttributeError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())  # type: ignore[attr-defined]  # a file has it
            os.close(nowhere)
            stream.flush()


def _pieces(text: str) -> list[str]:
    """Parts that a pipe takes whole if it takes anything: see `PIPE_BUF` in pipe(7)."""
    size = select.PIPE_BUF if text.isascii() else select.PIPE_BUF // 4
    return [text[begin : begin + size] for begin in range(0, len(text), size)]


def _is_ready(stream: Output) -> bool:
    """Whether a write returns at once."""
    try:
        file = stream.fileno()  # type: ignore[attr-defined]  # a file has it
    except (AttributeError, OSError, ValueError):
        return True  # It is memory, or fails at once.
    poll = select.poll()
    poll.register(file, select.POLLOUT)
    return bool(poll.poll(0))
