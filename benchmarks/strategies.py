"""How long does a step take under each strategy, on this machine, in one run?

    python benchmarks/strategies.py                 every strategy that is there, some minutes
    python benchmarks/strategies.py --write         the same, and docs/benchmarks.md with it

The real command on one script, the MNIST CNN of `step_time.py`, the same global batch for all.
Strategies take turns, round by round, and medians count. Horovod is left out where it is not
built.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from markers import replace_between
from progress import report
from step_time.environment import ROOT, versions
from step_time.report import processor
from step_time.workload import GLOBAL_BATCH
from tables import Results, add_json_option, show

PAGE = ROOT / "docs" / "benchmarks.md"
SCRIPT = Path(__file__).parent / "strategies" / "train.py"
STRATEGIES = {
    "single": ["--strategy", "single"],
    "mirrored": ["--strategy", "mirrored", "--devices-per-worker", "cpu:2"],
    "multiworker": ["--strategy", "multiworker", "--workers", "2"],
    "horovod": ["--strategy", "horovod", "--workers", "2"],
    "parameter-server": ["--strategy", "parameter-server", "--workers", "2", "--ps", "1"],
}
COLUMNS = ("strategy", "options", "ms per step", "spread", "samples/s")


def main() -> None:
    options = _options()
    names = [name for name in options.strategies if name != "horovod" or _has_horovod()]
    took: dict[str, list[float]] = {name: [] for name in names}
    failed: dict[str, str] = {}
    for number in range(options.rounds):
        for name in names if number % 2 else reversed(names):
            if name in failed:
                continue
            report(f"{name}: round {number + 1} of {options.rounds}")
            try:
                took[name].append(run(name, options.steps))
            except RuntimeError as error:
                failed[name] = str(error)
    report("")
    rows = [row(name, took[name]) for name in names if name not in failed]
    show(Results(columns=COLUMNS, rows=rows), as_json=options.json)
    for name, text in failed.items():
        print(f"{name} failed:\n{text}", file=sys.stderr)
    if options.write:
        replace_between(PAGE, "strategies", _markdown(rows, options))


def run(name: str, steps: int) -> float:
    """Seconds a step of one `phalanx run`.

    Raises:
        RuntimeError: it failed; the text is its last words.
    """
    with tempfile.TemporaryDirectory() as directory:
        words = ["run", *STRATEGIES[name], "--seed", "1", str(SCRIPT), str(steps)]
        done = subprocess.run(
            [sys.executable, "-m", "phalanx", *words],
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    found = [line.split("TOOK ")[1] for line in done.stdout.splitlines() if "TOOK " in line]
    if done.returncode or not found:
        raise RuntimeError(done.stderr[-2000:])
    return float(json.loads(found[0]))


def row(name: str, seconds: list[float]) -> list[str]:
    """One strategy's line of the table."""
    middle = median(seconds)
    spread = (max(seconds) - min(seconds)) / 2 / middle
    words = f"`{' '.join(STRATEGIES[name][2:])}`" if STRATEGIES[name][2:] else ""
    return [
        f"`{name}`",
        words,
        f"{middle * 1e3:.1f}",
        f"±{spread:.0%}",
        f"{GLOBAL_BATCH / middle:,.0f}",
    ]


def _has_horovod() -> bool:
    return importlib.util.find_spec("horovod") is not None


def _markdown(rows: list[list[str]], options: argparse.Namespace) -> str:
    packages = ["phalanx", "keras", "tensorflow-cpu"]
    packages += ["horovod"] if _has_horovod() else []
    found = versions(Path(sys.executable), packages)
    about = ", ".join(f"{name} {version}" for name, version in found.items())
    lines = [
        f"`python benchmarks/strategies.py --write` on {processor()}; {about}. "
        f"Global batch {GLOBAL_BATCH}, {options.rounds} rounds of {options.steps} steps.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{' --- |' * 2}{' ---: |' * 3}",
        *(f"| {' | '.join(cells)} |" for cells in rows),
    ]
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=200, help="steps of an epoch")
    parser.add_argument(
        "--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES), metavar="NAME"
    )
    add_json_option(parser)
    parser.add_argument("--write", action="store_true", help=f"update {PAGE.relative_to(ROOT)}")
    return parser.parse_args()


if __name__ == "__main__":
    main()
