"""What does coordination cost where computing costs nothing?

    python benchmarks/coordination.py                 1 to 16 workers, and the launcher of 32
    python benchmarks/coordination.py --workers 1 2   these
    python benchmarks/coordination.py --write         the same, and docs/benchmarks.md with it

A step waits for 50 ms in the place of computing, so that many workers share a few cores. In each
worker `fit` and a bare loop with one all-reduce take turns. Meanwhile the processor time of the
launcher is read from outside.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from markers import replace_between
from progress import report
from step_time.environment import ROOT, versions
from step_time.report import processor
from tables import Results, add_json_option, show

PAGE = ROOT / "docs" / "benchmarks.md"
SCRIPT = Path(__file__).parent / "coordination" / "train.py"
COLUMNS = (
    "workers",
    "`fit`, ms per step",
    "steps/s vs. one worker",
    "bare loop, ms per step",
    "`fit` vs. bare loop",
    "launcher, share of a core",
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run: milliseconds of a step by round, and the launcher's share of a core."""

    workers: int
    fit: list[float]
    loop: list[float]
    launcher: float

    @property
    def ratio(self) -> float:
        """The median over rounds of the step of `fit` to that of the bare loop."""
        return median(a / b for a, b in zip(self.fit, self.loop, strict=True))


def main() -> None:
    options = _options()
    runs = []
    for workers in options.workers:
        report(f"{workers} worker(s): {options.rounds} rounds of {options.steps} steps")
        runs.append(run(workers, options.steps, options.rounds))
    report("")
    rows = [row(one, runs[0]) for one in runs]
    show(Results(columns=COLUMNS, rows=rows), as_json=options.json)
    if options.write:
        replace_between(PAGE, "coordination", _markdown(rows, options))


def run(workers: int, steps: int, rounds: int) -> Run:
    """One `phalanx run`.

    Raises:
        RuntimeError: it failed; the text is the end of what it printed.
    """
    words = ["run", "--workers", str(workers), "--threads-per-worker", "1", "--seed", "1"]
    with tempfile.TemporaryDirectory() as directory, open(f"{directory}/errors", "w+") as errors:
        launcher = subprocess.Popen(
            [sys.executable, "-m", "phalanx", *words, str(SCRIPT), str(steps), str(rounds)],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert launcher.stdout is not None
        busy = Busy(launcher.pid)
        for line in launcher.stdout:
            _, _, text = line.partition("] ")
            if text.startswith("BEGIN"):
                busy.start()
            elif text.startswith("END "):
                share, found = busy.share(), json.loads(text.removeprefix("END "))
        if launcher.wait():
            errors.seek(0)
            raise RuntimeError(errors.read()[-2000:])
    return Run(workers=workers, launcher=share, **found)


class Busy:
    """The share of a core that a process takes, without its children."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)

    def start(self) -> None:
        """From now on."""
        self._since, self._before = time.monotonic(), self._seconds()

    def share(self) -> float:
        """Since the start."""
        return (self._seconds() - self._before) / (time.monotonic() - self._since)

    def _seconds(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


def row(one: Run, first: Run) -> list[str]:
    """One run's line of the table."""
    return [
        str(one.workers),
        f"{median(one.fit):.1f}",
        f"{median(first.fit) / median(one.fit):.1%}" if first.workers == 1 else "",
        f"{median(one.loop):.1f}",
        f"{one.ratio:.2f}",
        f"{one.launcher:.1%}",
    ]


def _markdown(rows: list[list[str]], options: argparse.Namespace) -> str:
    found = versions(Path(sys.executable), ("phalanx", "keras", "tensorflow-cpu"))
    about = ", ".join(f"{name} {version}" for name, version in found.items())
    cores = psutil.cpu_count()
    lines = [
        f"`python benchmarks/coordination.py --write` on {cores} cores ({processor()}); {about}. "
        f"Medians of {options.rounds} rounds of {options.steps} steps.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{' ---: |' * len(COLUMNS)}",
        *(f"| {' | '.join(cells)} |" for cells in rows),
    ]
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40, help="steps of an epoch")
    add_json_option(parser)
    parser.add_argument("--write", action="store_true", help=f"update {PAGE.relative_to(ROOT)}")
    return parser.parse_args()


if __name__ == "__main__":
    main()
