"""What does it cost a step to look for what is wrong, as `phalanx run` does by default?

    python benchmarks/debugging.py           some minutes
    python benchmarks/debugging.py --write   the same, and docs/benchmarks.md with it

Whole steps with and without it differ by less than two like step functions differ by chance. So the
code itself is measured: loops in a graph apply the gradients of a model with the check whether they
are finite (and what could keep the step in which one is not) and without, and take a batch with a
note for the flight recorder and without. The Python calls to the recorder come once an execution,
which has as many steps as `fit` chooses. The steps to which that is compared are those of two
workers, a core each. The comparison of replicas is not among it: it limits itself to
`max_overhead`, a hundredth of the time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from debugging_steps import TIMES, WORKERS, cost_of, mnist, perceptron
from markers import replace_between
from progress import report
from recording import BATCH, convolutional, dense
from rounds import round_options
from step_time.environment import ROOT, versions
from step_time.report import measured_on
from tables import Results, markdown_table, show

from phalanx.testing import run_workers

PAGE = ROOT / "docs" / "benchmarks.md"
PACKAGES = ("phalanx", "keras", "tensorflow-cpu")
MODELS = (
    (dense, BATCH),
    (perceptron, BATCH),
    (convolutional, BATCH),
    (mnist, BATCH),
    (mnist, 4 * BATCH),
)
COLUMNS = (
    "model",
    "samples",
    "ms per step",
    "steps per execution",
    "finite check, each step",
    "batch arrival, each step",
    "Python, each execution",
    "together, each step",
    "share of a step",
)

Row = tuple[str, ...]


def main() -> None:
    options = round_options(__doc__, PAGE, rounds=15)
    rows = [_row(make, batch, options.rounds) for make, batch in MODELS]
    show(Results(columns=COLUMNS, rows=rows), as_json=options.json)
    if options.write:
        replace_between(PAGE, "debugging", _markdown(rows, options.rounds))


def _row(make: Callable, batch: int, rounds: int) -> Row:
    report(f"{make.__name__} with {batch} samples")
    cost = run_workers(cost_of, WORKERS, args=(make, batch, rounds), deadline=3600)[0]
    report("")
    parts = (cost.check, cost.arrival, cost.python, cost.each_step)
    return (
        make.__name__,
        str(batch),
        f"{cost.step * 1e3:,.2f}",
        str(cost.steps),
        *(f"{seconds * 1e6:.1f} µs" for seconds in parts),
        f"{cost.each_step / cost.step:.2%}",
    )


def _markdown(rows: list[Row], rounds: int) -> str:
    return "\n".join(
        [
            f"`python benchmarks/debugging.py --rounds {rounds} --write`: the median of {rounds} "
            f"loops of {TIMES}; {WORKERS} workers, SGD; samples per worker.",
            "",
            measured_on(versions(Path(sys.executable), PACKAGES)),
            "",
            *markdown_table(COLUMNS, rows),
        ]
    )


if __name__ == "__main__":
    main()
