"""A run's directory: its name, and the page that says what was asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from itertools import count
from pathlib import Path

from phalanx.errors import OptionError

RUN_FILE = "run.json"


def create_run_dir(root: Path, name: str | None, now: datetime) -> Path:
    """Make the directory of a new run and return its absolute path.

    Args:
        root: the directory of all runs.
        name: the run's name; None takes the time, with a number when that is taken.
        now: the time.

    Raises:
        OptionError: a run of that name exists, or the directory cannot be made.
    """
    root = root.absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
        if name is not None:
            return _named(root / name)
        stem = now.strftime("%Y%m%d-%H%M%S")
        for number in count(1):
            path = root / (stem if number == 1 else f"{stem}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
    except OSError as error:
        raise OptionError(
            f"Cannot make a run directory in {root}: {error.strerror or error}. Give another "
            "--run-dir."
        ) from error
    raise AssertionError("count() does not end")


def _named(path: Path) -> Path:
    if path.is_dir() and not any(path.iterdir()):
        return path
    if path.exists():
        raise OptionError(
            f"There is a run in {path} already. Give another --name, or move that one away."
        )
    path.mkdir()
    return path


def write_run_file(directory: Path, document: Mapping[str, object]) -> None:
    """Write `run.json`, whole or not at all."""
    partial = directory / f"{RUN_FILE}.part"
    partial.write_text(json.dumps(document, indent=2, default=str) + "\n", encoding="utf-8")
    partial.replace(directory / RUN_FILE)
