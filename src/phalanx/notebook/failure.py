"""The failure of a run as an exception of the cell that started it."""

from __future__ import annotations

import re
import site
import sysconfig
from pathlib import Path
from typing import NoReturn

import phalanx
from phalanx.cluster.exit_codes import RESUME_EXIT_CODE
from phalanx.errors import RunFailedError
from phalanx.launcher.failure import FailureRecord
from phalanx.launcher.root_cause import root_cause
from phalanx.launcher.run_result import RunResult

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)


def raise_failure(result: RunResult) -> NoReturn:
    """Raise the exception for a run that has not ended well.

    Raises:
        RunFailedError: always.
    """
    if result.exit_code == RESUME_EXIT_CODE:
        name = result.run_dir.name
        raise RunFailedError(
            f"Training has saved and stopped, as a signal asked for. Run the cell again with "
            f"name={name!r} and resume=True to continue.",
            exit_code=result.exit_code,
            run_dir=result.run_dir,
        )
    cause = root_cause(result.endings)
    failure = None if cause is None else cause.failure
    place = None if failure is None else place_of(failure)
    report = result.report or f"The run ended with exit code {result.exit_code}."
    if place is not None:
        first, *rest = report.split("\n", 1)
        at = f"  {place[0]}, line {place[1]}"
        report = "\n".join([first, at, *rest])
    raise RunFailedError(
        report,
        exit_code=result.exit_code,
        run_dir=result.run_dir,
        rank=None if cause is None else cause.rank,
        type="" if failure is None else failure.type,
        file=None if place is None else place[0],
        line=None if place is None else place[1],
        traceback="" if failure is None else failure.traceback,
    )


def place_of(failure: FailureRecord) -> tuple[str, int] | None:
    """File and line of the last frame of the traceback that is in the user's code."""
    libraries = [sysconfig.get_path("stdlib"), *site.getsitepackages(), site.getusersitepackages()]
    libraries.append(str(Path(phalanx.__file__).parent))
    frames = [(each["file"], int(each["line"])) for each in _FRAME.finditer(failure.traceback)]
    own = [
        (file, line)
        for file, line in frames
        if not file.startswith((*libraries, "<frozen")) and "/site-packages/" not in file
    ]
    return own[-1] if own else None
