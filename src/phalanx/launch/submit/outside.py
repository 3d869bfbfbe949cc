"""Calling the cluster's own programs: sbatch, squeue, scancel."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence

from phalanx.errors import LaunchError

Call = Callable[[Sequence[str]], str]
"""Runs a program to its end and gives what it printed."""


def call(words: Sequence[str]) -> str:
    """Run a program and give its standard output.

    Raises:
        LaunchError: there is no such program, or it failed.
    """
    try:
        done = subprocess.run(words, check=False, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise LaunchError(
            f"Asked to call {words[0]}, but there is no such program here. Submit from a machine "
            "that has it, or write the text with --dry-run and take it there."
        ) from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip() or "nothing"
        raise LaunchError(f"{words[0]} ended with {done.returncode} and said: {said}")
    return done.stdout
