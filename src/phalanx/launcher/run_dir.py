"""A run's directory: its name, and the page that says what was asked."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Any

from phalanx.cluster.exit_codes import RESUME_EXIT_CODE
from phalanx.errors import ConfigurationError
from phalanx.lease.records import LEASE_DIR
from phalanx.monitoring.durable_files import PRIVATE_DIR, PRIVATE_FILE, write_durably

RUN_FILE = "run.json"


def create_run_dir(root: Path, name: str | None, now: datetime, *, resume: bool = False) -> Path:
    """Make the directory of a run and return its absolute path.

    A run of that name that has saved and stopped resumes where it lies; its lease's owner calls
    `check_run_dir`. Only the owner can read a new directory of a run; the directory of all runs,
    which users may share, follows the umask.

    Args:
        root: the directory of all runs.
        name: the run's name; None takes the time, with a number when that is taken.
        now: the time.
        resume: continue with the run of that name, however it ended.

    Raises:
        ConfigurationError: a run of that name has ended, or the directory cannot be made.
    """
    root = root.absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
        if name is not None:
            return _named(root / name, resume=resume)
        stem = now.strftime("%Y%m%d-%H%M%S")
        for number in count(1):
            path = root / (stem if number == 1 else f"{stem}-{number}")
            try:
                path.mkdir(mode=PRIVATE_DIR)
            except FileExistsError:
                continue
            return path
    except OSError as error:
        raise ConfigurationError(
            f"Cannot make a run directory in {root}: {error.strerror or error}. Give another "
            "--run-dir."
        ) from error
    raise AssertionError("count() does not end")


def _named(path: Path, *, resume: bool) -> Path:
    if not path.exists():
        path.mkdir(mode=PRIVATE_DIR)
    elif not (path / LEASE_DIR).is_dir():  # Else a launcher may be running it: the lease shows it.
        check_run_dir(path, resume=resume)
    return path


def check_run_dir(path: Path, *, resume: bool) -> None:
    """See that a run, which no launcher runs now, may start or continue in `path`.

    Raises:
        ConfigurationError: a run of that name has ended.
    """
    is_free = path.is_dir() and not {each.name for each in path.iterdir()} - {LEASE_DIR}
    if not is_free and not (resume and path.is_dir()) and saved_run(path) is None:
        raise ConfigurationError(
            f"There is a run in {path} already. Give another --name, move that one away, or "
            "continue it with --resume."
        )


def saved_run(directory: Path) -> Mapping[str, Any] | None:
    """The `run.json` of a run that has saved and stopped; None where there is no such run."""
    document = earlier_run(directory) or {}
    try:
        return document if document["result"]["exit_code"] == RESUME_EXIT_CODE else None
    except (KeyError, TypeError):
        return None


def earlier_run(directory: Path) -> Mapping[str, Any] | None:
    """The `run.json` that lies there; None where there is none that can be read."""
    try:
        document = json.loads((directory / RUN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def write_run_file(directory: Path, document: Mapping[str, object]) -> None:
    """Write `run.json`, whole or not at all."""
    text = json.dumps(document, indent=2, default=str) + "\n"
    write_durably(directory / RUN_FILE, text, mode=PRIVATE_FILE)


_PACKAGES = ("phalanx", "keras", "tensorflow", "tensorflow-cpu", "tf-keras", "numpy")


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that decide a run's numbers."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def git_commit(directory: Path) -> dict[str, object] | None:
    """The commit checked out around `directory`, and whether files differ from it."""
    commit = _git(directory, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": bool(changes)}


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", *arguments],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
