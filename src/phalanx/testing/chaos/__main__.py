"""An unchanged script with faults: `python -m phalanx.testing.chaos PLAN [-m] SCRIPT [ARGS]`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from phalanx.errors import ConfigurationError
from phalanx.monitoring.phase_tracker import phase_tracker
from phalanx.testing.chaos.injector import injector_here, marks_of_run, rank_here
from phalanx.testing.chaos.plan import parse_plan
from phalanx.testing.chaos.storage_faults import FaultyDisk, arm
from phalanx.worker.run_script import Target, execute


def main(arguments: Sequence[str]) -> dict[str, object]:
    """Put the plan to work in this process, then run the script; its variables come back.

    Raises:
        ConfigurationError: there is no script, or the plan cannot be read.
    """
    if len(arguments) < 2 or tuple(arguments[1:]) == ("-m",):
        raise ConfigurationError(
            "phalanx.testing.chaos needs a plan and a script; found "
            f"{' '.join(arguments) or 'neither'!r}. Write: phalanx run -m phalanx.testing.chaos "
            '"Kill(worker=1, step=7)" train.py'
        )
    text, *script = arguments
    plan, marks = parse_plan(text), marks_of_run(os.environ)
    arm(FaultyDisk(plan, rank_here(os.environ), marks))
    phase_tracker.listen(injector_here(plan, marks).reached)
    words = script if script[0] == "-m" else ["-f", *script]
    return execute(Target.from_arguments(words))


if __name__ == "__main__":
    script = main(sys.argv[1:])  # Its variables live as long as the process.
