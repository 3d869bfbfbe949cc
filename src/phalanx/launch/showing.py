"""What a launcher shows, for as long as somebody takes it.

A reader that has ended (`phalanx run ... | head -1`), a full disk or a lost terminal must not end a
training: from then on nothing is shown there.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Protocol


class Output(Protocol):
    """Where text is shown."""

    def write(self, text: str, /) -> object:
        """Take text."""

    def flush(self) -> None:
        """Pass on what was taken."""


class Showing:
    """Writes to a stream until that refuses, and never raises an `OSError`."""

    encoding = "utf-8"
    """What `rich` goes by; the stream itself replaces what it cannot encode."""

    def __init__(self, stream: Output | None) -> None:
        """Begin.

        Args:
            stream: standard output or standard error; None where that was closed from the start.
        """
        self._stream = stream

    def write(self, text: str) -> None:
        """Show text, if somebody takes it."""
        if self._stream is not None:
            try:
                self._stream.write(text)
            except OSError:
                self._stop(self._stream)

    def flush(self) -> None:
        """Pass on what was written, if somebody takes it."""
        if self._stream is not None:
            try:
                self._stream.flush()
            except OSError:
                self._stop(self._stream)

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return bool(getattr(self._stream, "isatty", bool)())

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
