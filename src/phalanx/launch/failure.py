"""The file in which a failed worker says what happened; written there, read here."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class FailureRecord:
    """One worker's failure, in its own words.

    Attributes:
        rank: the worker.
        type: the exception's class name.
        message: the exception's text.
        traceback: the formatted traceback, the user's code on; empty for `sys.exit`.
        time: seconds since the epoch at which the exception reached us.
        exit_code: the code with which the worker means to end.
        step: the training step it was at, where known.
        advice: what may be done about it, in sentences; empty where nobody knows.
    """

    rank: int
    type: str
    message: str
    traceback: str
    time: float
    exit_code: int = 1
    step: int | None = None
    advice: str = ""

    @property
    def summary(self) -> str:
        """The failure in one line: its type and the first line of its message."""
        if self.type == "SystemExit":
            extra = "" if self.message == str(self.exit_code) else f" ({self.message})"
            return f"the script ended with exit code {self.exit_code}{extra}"
        first = _first_line(self.message)
        return f"{self.type}: {first}" if first else self.type

    def write(self, path: Path) -> None:
        """Write it whole or not at all: the launcher may look at any moment."""
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        partial.write_text(json.dumps(asdict(self), indent=2), encoding="utf-8")
        partial.replace(path)

    @classmethod
    def read(cls, path: Path) -> FailureRecord | None:
        """The record in `path`; None when there is none that can be read."""
        known = {field.name for field in fields(cls)}
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{key: value for key, value in document.items() if key in known})
        except (OSError, ValueError, TypeError, AttributeError):
            return None


def _first_line(message: str) -> str:
    """What a message says first; TensorFlow puts the frames of the graph before it."""
    lines = message.strip().splitlines()
    if lines[:1] == ["Graph execution error:"]:
        frames = ("  ", "Detected at ")
        said = [line for line in lines[1:] if line and not line.startswith(frames)]
        lines = said or lines
    return lines[0] if lines else ""
