"""What a run comes to."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from phalanx.cluster.debug_options import DebugOptions, ProfiledSteps
from phalanx.cluster.exit_codes import RESUME_EXIT_CODE
from phalanx.launcher.hang_detector import EXIT_CODE
from phalanx.launcher.preemption import SIGNALS, stopped_at
from phalanx.launcher.root_cause import WorkerExit, can_resume, failure_report, root_cause
from phalanx.launcher.run_layout import AttemptPaths, profile_of
from phalanx.launcher.worker_diagnosis import failure_context


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended.

    Attributes:
        exit_code: 0, the root cause's code, `RESUME_EXIT_CODE`, or 128 + the signal that ended
            the launcher.
        run_dir: where everything about it lies.
        report: the root cause in words; None when no worker failed.
        endings: how each worker of the last attempt ended.
    """

    exit_code: int
    run_dir: Path
    report: str | None = None
    endings: tuple[WorkerExit, ...] = ()


def resolve_result(
    endings: Sequence[WorkerExit],
    *,
    hang: str | None,
    signal: int | None,
    paths: AttemptPaths,
    seen: str | None = None,
) -> RunResult:
    """What the run comes to, if this attempt is the last.

    Args:
        endings: how each worker ended.
        hang: what was said of a worker group that made no progress.
        signal: the first that reached the launcher.
        paths: the attempt's files.
        seen: who was where when a collective had timed out.
    """
    cause, report = root_cause(endings), None
    if can_resume(endings) and signal in (None, *SIGNALS):
        code = RESUME_EXIT_CODE
    elif signal is not None and not _finished_anyway(endings, signal):
        code = 128 + signal
        if cause is not None and cause.could_not_save:
            report = failure_report(cause, endings, paths.log(cause.rank))
    elif hang is not None:
        code, report = EXIT_CODE, hang
    elif cause is None and any(each.exit_code == 0 for each in endings):
        code = 0
    elif cause is None:
        code, report = 1, _NOT_SAVED
    else:
        code = cause.shell_code
        ranks = [ending.rank for ending in endings]
        where = failure_context(paths, ranks, cause.rank)
        report = failure_report(cause, endings, paths.log(cause.rank), where)
        if seen is not None:
            report += f"\nWhen the wait for a peer had timed out:\n{seen}"
    return RunResult(exit_code=code, run_dir=paths.run, report=report, endings=tuple(endings))


_NOT_SAVED = (
    "The workers were asked to save and stop, and were ended because they did not do so within "
    "--grace-period; the same command resumes from the last checkpoint."
)


def _finished_anyway(endings: Sequence[WorkerExit], signal: int) -> bool:
    """Whether training came to its end while it was asked to save."""
    return signal in SIGNALS and all(each.exit_code == 0 for each in endings)


def preemption_message(run_dir: Path, *, named: bool) -> str:
    """What is said of a run that has saved and stopped.

    Args:
        run_dir: its directory.
        named: whether it was given its name, so that the same command finds it.
    """
    step = stopped_at(run_dir)
    where = "" if step is None else f" at step {step}"
    name = "" if named else f" with --name {run_dir.name}"
    return f"every worker has saved and stopped{where}; run the same command again{name} to resume"


def print_summary(
    result: RunResult, switches: DebugOptions, announce: Callable[[str], None]
) -> None:
    """Announce where a profile is; remove the run of a trial, unless it failed.

    Args:
        result: how the run ended.
        switches: what was asked for.
        announce: says something to the user.
    """
    if switches.profile is not None:
        announce(profile_message(result.run_dir, switches.profile))
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


def profile_message(run_dir: Path, requested: ProfiledSteps) -> str:
    """Which workers' steps were looked at, and how to see what was found."""
    steps = f"step{'s' * (requested.first != requested.last)} {requested.first}"
    steps += f" to {requested.last}" if requested.first != requested.last else ""
    seen = [
        rank for rank in requested.workers if profile_of(run_dir, requested.name, rank).exists()
    ]
    if not seen:
        return (
            f"no profile was taken: no fit trained {steps} on worker {_listed(requested.workers)}"
        )
    return (
        f"profile of {steps} on worker {_listed(seen)}: tensorboard --logdir "
        f"{run_dir / 'tensorboard'} (its page Profile comes with pip install "
        "tensorboard-plugin-profile)"
    )


def _listed(ranks: list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks))
