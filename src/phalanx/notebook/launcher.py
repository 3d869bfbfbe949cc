"""The process that a kernel starts: the launcher of one run.

It reads a `LauncherRequest` from standard input, and writes a `LauncherOutcome` to a file.
"""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.launcher.parent_death import die_with_launcher

if TYPE_CHECKING:
    from phalanx.cli.run_options import RunCommand
    from phalanx.errors import PhalanxError
    from phalanx.launcher.run_result import RunResult

MODULE = "phalanx.notebook.launcher"


@dataclass(frozen=True, kw_only=True)
class LauncherRequest:
    """What the launcher is asked for.

    Attributes:
        command: the options of `phalanx run`.
        argv: the command as the run records it; the arguments of the script are last.
        outcome: the file to write.
    """

    command: RunCommand
    argv: tuple[str, ...]
    outcome: Path


@dataclass(frozen=True, kw_only=True)
class LauncherOutcome:
    """How it ended: one of the two.

    Attributes:
        result: of the run.
        error: why there was no run.
    """

    result: RunResult | None = None
    error: PhalanxError | None = None


def main() -> None:
    """Be the launcher."""
    from phalanx.cli.run import start
    from phalanx.errors import PhalanxError

    request: LauncherRequest = pickle.load(sys.stdin.buffer)
    code = 2
    try:
        result = start(request.command, request.argv)
        outcome, code = LauncherOutcome(result=result), result.exit_code
    except PhalanxError as error:
        outcome = LauncherOutcome(error=error)
    except KeyboardInterrupt:  # Before or after the run: the kernel knows.
        sys.exit(130)
    partial = request.outcome.with_suffix(".part")
    partial.write_bytes(pickle.dumps(outcome))
    partial.replace(request.outcome)
    sys.exit(code)


if __name__ == "__main__":
    # Before the imports: the kernel may end meanwhile.
    die_with_launcher(os.environ)
    from phalanx.notebook import launcher

    launcher.main()
