"""What is said when a run has ended, and what stays of one that was to keep nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from phalanx.cluster.switches import ProfiledSteps, Switches
from phalanx.launch.layout import profile_of
from phalanx.launch.outcome import RunResult


def say_last_words(result: RunResult, switches: Switches, announce: Callable[[str], None]) -> None:
    """Tell where a profile lies; remove the run of a trial, unless it failed.

    Args:
        result: how the run ended.
        switches: what was asked for.
        announce: says something to the user.
    """
    if switches.profile is not None:
        announce(profile_in_words(result.run_dir, switches.profile))
    if not switches.trial_batches:
        return
    many = f"{switches.trial_batches} batch{'es' * (switches.trial_batches != 1)}"
    if result.report is not None:
        announce(f"fast-dev-run of {many} failed: its logs stay in {result.run_dir}")
        return
    shutil.rmtree(result.run_dir, ignore_errors=True)
    with suppress(OSError):
        result.run_dir.parent.rmdir()  # the directory of all runs, if there is no other
    announce(f"fast-dev-run: trained and validated on {many} at most; nothing was kept")


def profile_in_words(run_dir: Path, asked: ProfiledSteps) -> str:
    """Which workers' steps were looked at, and how to see what was found."""
    steps = f"step{'s' * (asked.first != asked.last)} {asked.first}"
    steps += f" to {asked.last}" if asked.first != asked.last else ""
    seen = [rank for rank in asked.workers if profile_of(run_dir, asked.name, rank).exists()]
    if not seen:
        return f"no profile was taken: no fit trained {steps} on worker {_listed(asked.workers)}"
    return (
        f"profile of {steps} on worker {_listed(seen)}: tensorboard --logdir "
        f"{run_dir / 'tensorboard'} (its page Profile comes with pip install "
        "tensorboard-plugin-profile)"
    )


def _listed(ranks: list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks))
