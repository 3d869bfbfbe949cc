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
    """

    rank: int
    type: str
    message: str
    traceback: str
    time: float
    exit_code: int = 1
    step: int | None = None

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
