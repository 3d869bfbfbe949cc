"""The entrypoint of a Ray job: `python -m phalanx.submit.ray_driver PLAN`."""

from __future__ import annotations

import signal
import sys

from phalanx.errors import PhalanxError
from phalanx.launcher.showing import Showing
from phalanx.launcher.signals import SignalCatcher
from phalanx.launcher.supervisor import MonotonicClock
from phalanx.submit.ray_driver.driver import Driver
from phalanx.submit.ray_driver.launcher_group import RayCluster
from phalanx.submit.ray_driver.plan import RayPlan


def announce(message: str) -> None:
    """A line in the job's log."""
    _show(f"phalanx: {message}")


def on_output(index: int, output: str) -> None:
    """What a launcher has said: the leading one's as it is, the others' with their number."""
    for line in output.splitlines():
        _show(line if index == 0 else f"({index}) {line}")


def _show(line: str) -> None:
    shown = Showing(sys.stdout)
    shown.write(f"{line}\n")
    shown.flush()


def main(text: str) -> int:
    """Drive the run to its end; gives its exit code."""
    plan = RayPlan.from_json(text)
    cluster = RayCluster(plan, on_output=on_output)
    # After Ray, which sets handlers of its own.
    with SignalCatcher((signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)) as signals:
        driver = Driver(plan, cluster, signals=signals, clock=MonotonicClock(), announce=announce)
        try:
            return driver.run()
        except PhalanxError as error:
            announce(str(error))
            return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
