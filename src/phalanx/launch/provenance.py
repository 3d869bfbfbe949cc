"""Where a run came from: versions and git commit, without importing what they name."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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
