"""What does it cost a step to look for what is wrong, as `phalanx run` does by default?

    python benchmarks/debugging.py           some minutes
    python benchmarks/debugging.py --write   the same, and docs/benchmarks.md with it

Two workers, a core each, train in turn by steps that look and by like ones that do not: for the
check whether gradients are finite, with what could keep the step in which one is not; and for what
notes in the graph that a batch has come. Two like step functions differ by 1 to 3 per cent by
chance, so each round traces its own, and the median of rounds counts; the table says how far they
are apart. Beside the time that passed it has that of the processors, of which other programs take
nothing. The Python calls to the flight recorder are measured on their own. The comparison of
replicas is not among it: it limits itself to `max_overhead`, a hundredth of the time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from debugging_steps import STEPS, WORKERS, mnist, rounds_of
from markers import replace_between
from progress import report
from recording import BATCH, convolutional, dense
from rounds import round_options
from step_time.environment import ROOT, versions
from step_time.report import processor
from tables import Results, show

from phalanx.testing import run_workers

PAGE = ROOT / "docs" / "benchmarks.md"
PACKAGES = ("phalanx", "keras", "tensorflow-cpu")
MODELS = ((dense, BATCH), (convolutional, BATCH), (mnist, BATCH), (mnist, 4 * BATCH))
COLUMNS = (
    "model",
    "samples",
    "ms per step",
    "finite check",
    "flight recorder, graph",
    "flight recorder, Python",
    "total",
    "middle half of the rounds",
    "share of step time",
    "processor time",
    "share of processor time",
)

Row = tuple[str, ...]


def main() -> None:
    options = round_options(__doc__, PAGE, rounds=12)
    rows = [_row(make, batch, options.rounds) for make, batch in MODELS]
    show(Results(columns=COLUMNS, rows=rows), as_json=options.json)
    if options.write:
        replace_between(PAGE, "debugging", _markdown(rows, options.rounds))


def _row(make: Callable, batch: int, rounds: int) -> Row:
    report(f"{make.__name__} with {batch} samples: {rounds} rounds")
    found = run_workers(rounds_of, WORKERS, args=(make, batch, rounds), deadline=3600)[0]
    report("")
    passed, busy = (_shares([each[i] for each in found]) for i in range(2))
    low, high = passed.half
    return (
        make.__name__,
        str(batch),
        f"{passed.step * 1e3:,.2f}",
        *(f"{seconds * 1e6:.0f} µs" for seconds in (*passed.parts, passed.together)),
        f"{low * 1e6:.0f} to {high * 1e6:.0f} µs",
        f"{passed.together / passed.step:.2%}",
        f"{busy.together * 1e6:.0f} µs",
        f"{busy.together / busy.step:.2%}",
    )


@dataclass(frozen=True)
class Shares:
    """Seconds: medians of all rounds.

    Attributes:
        step: of a step that does not look.
        parts: of each part of looking.
        together: of all parts.
        half: between what `together` is in the middle half of the rounds.
    """

    step: float
    parts: tuple[float, ...]
    together: float
    half: tuple[float, float]


def _shares(rounds: list[list[float]]) -> Shares:
    step, *parts = (median(each) for each in zip(*rounds, strict=True))
    each = sorted(sum(rest) for _, *rest in rounds)
    quarter = len(each) // 4
    return Shares(step, tuple(parts), median(each), (each[quarter], each[-1 - quarter]))


def _markdown(rows: list[Row], rounds: int) -> str:
    line = ("| {} " * len(COLUMNS) + "|").format
    named = versions(Path(sys.executable), PACKAGES).items()
    about = ", ".join(f"{name} {number}" for name, number in named)
    return "\n".join(
        [
            f"`python benchmarks/debugging.py --rounds {rounds} --write`: the median of {rounds} "
            f"rounds of {STEPS} steps of each kind; {WORKERS} workers, SGD; samples per worker.",
            "",
            f"Measured on {processor()}; {about}.",
            "",
            line(*COLUMNS),
            "| --- |" + " ---: |" * (len(COLUMNS) - 1),
            *(line(*row) for row in rows),
        ]
    )


if __name__ == "__main__":
    main()
