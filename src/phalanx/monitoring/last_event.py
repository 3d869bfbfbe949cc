"""The last record of a kind, read from a file's end."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

_BYTES = 1 << 16


def last_record(path: Path, kind: str, *fields: str) -> dict[str, Any] | None:
    """The last record of `kind` with all of `fields`, in the file's last 64 kB; None without."""
    try:
        with path.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - _BYTES))
            lines = stream.read().splitlines()
    except OSError:
        return None
    wanted = set(fields)
    for line in reversed(lines):
        with suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict) and record.get("kind") == kind and record.keys() >= wanted:
                return record
    return None
