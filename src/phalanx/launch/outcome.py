"""What a run comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.launch.hang import EXIT_CODE
from phalanx.launch.last_flight import last_words
from phalanx.launch.layout import AttemptPaths
from phalanx.launch.preemption import RESUME_EXIT_CODE, SIGNALS, stopped_at
from phalanx.launch.rootcause import Ending, can_resume, describe, root_cause


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
    endings: tuple[Ending, ...] = ()


def outcome(
    endings: Sequence[Ending],
    *,
    hang: str | None,
    signal: int | None,
    paths: AttemptPaths,
    seen: str | None = None,
) -> RunResult:
    """What the run comes to, if this attempt is the last.

    Args:
        endings: how each worker ended.
        hang: what was said of a gang that stood still.
        signal: the first that reached the launcher.
        paths: the attempt's files.
        seen: who was where when a collective had timed out.
    """
    cause, report = root_cause(endings), None
    if can_resume(endings) and signal in (None, *SIGNALS):
        code = RESUME_EXIT_CODE
    elif signal is not None and not _finished_anyway(endings, signal):
        code = 128 + signal
    elif hang is not None:
        code, report = EXIT_CODE, hang
    elif cause is None:
        code = 0
    else:
        code = cause.shell_code
        ended = {ending.rank: ending.time for ending in endings}
        where = last_words(paths, ended, cause.rank)
        report = describe(cause, endings, paths.log(cause.rank), where)
        if seen is not None:
            report += f"\nWhen the wait for a peer had timed out:\n{seen}"
    return RunResult(exit_code=code, run_dir=paths.run, report=report, endings=tuple(endings))


def _finished_anyway(endings: Sequence[Ending], signal: int) -> bool:
    """Whether training came to its end while it was asked to save."""
    return signal in SIGNALS and all(each.exit_code == 0 for each in endings)


def saved_in_words(run_dir: Path, *, named: bool) -> str:
    """What is said of a run that has saved and stopped.

    Args:
        run_dir: its directory.
        named: whether it was given its name, so that the same command finds it.
    """
    step = stopped_at(run_dir)
    where = "" if step is None else f" at step {step}"
    name = "" if named else f" with --name {run_dir.name}"
    return f"every worker has saved and stopped{where}; run the same command again{name} to go on"
