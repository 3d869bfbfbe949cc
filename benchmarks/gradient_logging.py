"""What does it cost to log gradients?

    python benchmarks/gradient_logging.py           the whole comparison, some minutes
    python benchmarks/gradient_logging.py --write   the same, and docs/benchmarks.md with it

Phalanx's `fit` on the MNIST CNN of `step_time.py`, three times: without logging, with
`GradientLogger()`, and with histograms of every gradient at every step.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from markers import replace_between
from progress import report
from step_time.environment import ROOT, versions
from step_time.measure import Series, measure, ratio
from step_time.report import measured_on
from step_time.workload import GLOBAL_BATCH, MODELS
from tables import Results, add_json_option, markdown_table, show

PAGE = ROOT / "docs" / "benchmarks.md"
NAMES = {
    "ours": "no logging",
    "ours_logged": "`GradientLogger()`",
    "ours_logging_all": "histograms at every step",
}
COLUMNS = (
    "",
    "ms per step",
    "vs. none",
    "spread",
    "CPU ms",
    "vs. none",
    "MB per 1,000 steps",
    "peak MB",
    "more than none",
)
PACKAGES = ("phalanx", "keras", "tensorflow-cpu")


def main() -> None:
    options = _options()
    python = Path(sys.executable)
    logs = Path(tempfile.mkdtemp(prefix="gradient-logging-"))
    worker_groups = [
        measure(
            list(NAMES),
            ["cnn"],
            workers=workers,
            rounds=options.rounds,
            steps={"cnn": options.steps},
            python=python,
            logs=logs,
            report=report,
        )
        for workers in options.workers
    ]
    report("")
    if failed := sorted({one.contender for series in worker_groups for one in series if one.error}):
        sys.exit(f"What {', '.join(failed)} printed is in {logs}")
    found = [Results(columns=COLUMNS, rows=_rows(s), title=_title(s)) for s in worker_groups]
    show(*found, as_json=options.json)
    if options.write:
        about = _describe(versions(python, PACKAGES), options)
        replace_between(PAGE, "gradient-logging", _markdown(worker_groups, about))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--steps", type=int, default=100, help="steps of a block; 100 have one look at least"
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    add_json_option(parser)
    parser.add_argument("--write", action="store_true", help=f"update {PAGE.relative_to(ROOT)}")
    return parser.parse_args()


def _rows(series: Sequence[Series]) -> list[tuple[str, ...]]:
    none = series[0]
    return [
        (
            NAMES[one.contender],
            f"{one.milliseconds:.2f}",
            f"{ratio(one, none):.3f}",
            f"± {_spread_of_ratio(one, none):.1%}",
            f"{one.cpu_milliseconds:.2f}",
            f"{ratio(one, none, of='cpu'):.3f}",
            f"{median(lap.written for lap in one.laps) * 1000 / 1e6:.2f}",
            f"{_peak(one) / 1e6:.0f}",
            f"{(_peak(one) - _peak(none)) / 1e6:+.0f}",
        )
        for one in series
    ]


def _peak(one: Series) -> float:
    return max(lap.memory for lap in one.laps)


def _spread_of_ratio(one: Series, none: Series) -> float:
    """Half the distance between the quartiles of the rounds' own ratios."""
    ordered = sorted(a.wall / b.wall for a, b in zip(one.laps, none.laps, strict=True))
    quarter = len(ordered) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / 2


def _title(series: Sequence[Series]) -> str:
    workers = series[0].workers
    return f"{MODELS['cnn']}, {workers} worker{'' if workers == 1 else 's'}"


def _markdown(worker_groups: Sequence[Sequence[Series]], about: str) -> str:
    lines = [about, ""]
    for series in worker_groups:
        lines += [f"### Gradient logging, {_title(series)}", ""]
        lines += [*markdown_table(COLUMNS, _rows(series)), ""]
    return "\n".join(lines)


def _describe(software: dict[str, str], options: argparse.Namespace) -> str:
    return (
        f"`python benchmarks/gradient_logging.py --write`: the median of {options.rounds} rounds "
        f"of {options.steps} steps; global batch {GLOBAL_BATCH}, Adam, one core for each worker. "
        "Ratios are medians of the ratios of each round, and the spread is that of the ratios. "
        "Steps that trace are excluded. Event files and CPU time are sums over all workers; the "
        "peak is the maximum memory of one worker.\n\n"
        f"{measured_on(software)}"
    )


if __name__ == "__main__":
    main()
