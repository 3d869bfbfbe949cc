"""Calling the cluster's own programs: sbatch, squeue, scancel."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from phalanx.errors import LaunchError

NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


class Call(Protocol):
    """Runs a program to its end and gives what it printed."""

    def __call__(self, words: Sequence[str], variables: Mapping[str, str] = ..., /) -> str:
        """Run it; see `run_command`."""


def run_command(words: Sequence[str], variables: Mapping[str, str] = NO_VARIABLES) -> str:
    """Run a program and give its standard output.

    Args:
        words: the program and what it is given.
        variables: added to its environment.

    Raises:
        LaunchError: there is no such program, or it failed.
    """
    try:
        done = subprocess.run(
            words, check=False, capture_output=True, text=True, env={**os.environ, **variables}
        )
    except FileNotFoundError as error:
        raise LaunchError(
            f"Asked to call {words[0]}, but there is no such program here. Submit from a machine "
            "that has it, or write the text with --dry-run and take it there."
        ) from error
    if done.returncode:
        output = (done.stderr or done.stdout).strip() or "nothing"
        raise LaunchError(f"{words[0]} ended with {done.returncode} and printed: {output}")
    return done.stdout
