"""Does a training on three workers bear what goes wrong, and come to the same?

    python benchmarks/soak.py                    500 faults, an hour or two
    python benchmarks/soak.py --faults 10        as many, and those of the last run
    python benchmarks/soak.py --seed 17 --runs 1 one run again
    python benchmarks/soak.py --write            the same, and docs/chaos.md with it

Each run meets 25 faults drawn from its seed. Inside: workers killed, stopped, disconnected,
storage that fails or is slow. Outside: the launcher killed, its output closed, a second launcher, a
bit of a checkpoint flipped, the wall clock set, the disk full, a worker that cannot start. The run
must end with exit code 0, with weights, optimizer and history equal to those of the undisturbed run
bit for bit (to rounding if fewer workers trained a part), and leave no process, no damaged
checkpoint and no stray file.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from markers import replace_between
from soak.case import Outcome, disturbed, undisturbed
from soak.plans import kind_of, plan_of
from soak.running import build_clock_library
from tables import Results, add_json_option, show

PAGE = Path(__file__).parents[1] / "docs" / "chaos.md"
ENOUGH = 10**6


def main() -> int:
    options = _options()
    place = Path(options.directory or tempfile.mkdtemp(prefix="soak-"))
    began = time.monotonic()
    outcomes = Soak(place, faults=options.faults, runs=options.runs, jobs=options.jobs).run(
        options.seed
    )
    output = summary(outcomes, time.monotonic() - began)
    show(Results(columns=HEAD, rows=rows(outcomes)), goodput_table(outcomes), as_json=options.json)
    print(output, file=sys.stderr if options.json else sys.stdout)
    bad = [outcome for outcome in outcomes if outcome.wrong]
    for outcome in bad:
        print(f"\nseed {outcome.seed}, in {place / str(outcome.seed)}:", *outcome.wrong, sep="\n  ")
        print(f"  {plan_of(outcome.seed)}")
    if options.write:
        replace_between(PAGE, "soak", page(outcomes, output, sys.argv[1:]))
    if not bad:
        shutil.rmtree(place, ignore_errors=True)
    return 1 if bad else 0


class Soak:
    """Disturbed runs, some at a time, until enough faults have come about."""

    def __init__(self, place: Path, *, faults: int, runs: int, jobs: int) -> None:
        self._place = place
        self._faults = faults
        self._runs = runs
        self._jobs = jobs
        self._lock = threading.Lock()
        self._outcomes: list[Outcome] = []

    def run(self, seed: int) -> list[Outcome]:
        """All outcomes, by seed, from `seed` on."""
        kinds = ("arrays", "pipeline") if self._runs > 1 else (kind_of(seed),)
        self._expected = {kind: undisturbed(kind, self._place / kind) for kind in kinds}
        self._clock_library = build_clock_library(self._place)
        self._next, self._end = seed, seed + self._runs
        with ThreadPoolExecutor(self._jobs) as pool:
            for worker in [pool.submit(self._work) for _ in range(self._jobs)]:
                worker.result()
        return sorted(self._outcomes, key=lambda outcome: outcome.seed)

    def _work(self) -> None:
        while (seed := self._take()) is not None:
            place = self._place / str(seed)
            outcome = disturbed(
                seed, place, self._expected[kind_of(seed)], clock_library=self._clock_library
            )
            if not outcome.wrong:
                shutil.rmtree(place)
            with self._lock:
                self._outcomes.append(outcome)
            total = happened(self._outcomes).total()
            say = "; ".join(outcome.wrong) or "as undisturbed"
            print(f"seed {seed}: {say} ({total} faults so far)", file=sys.stderr, flush=True)

    def _take(self) -> int | None:
        with self._lock:
            if self._next >= self._end or happened(self._outcomes).total() >= self._faults:
                return None
            self._next += 1
            return self._next - 1


def happened(outcomes: Sequence[Outcome]) -> Counter[str]:
    """How many faults of each kind came about."""
    return sum((outcome.happened for outcome in outcomes), Counter())


def rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """For each kind of fault: how many, in how many runs, and in how many that went wrong."""
    results = []
    for kind, count in sorted(happened(outcomes).items()):
        runs = [outcome for outcome in outcomes if outcome.happened[kind]]
        bad = sum(bool(outcome.wrong) for outcome in runs)
        results.append((kind, str(count), str(len(runs)), str(bad)))
    return results


HEAD = ("fault", "happened", "in runs", "of these runs failed")


def goodput_table(outcomes: Sequence[Outcome]) -> Results:
    """The time in steps by `phalanx report` and by the script; of runs whose clock was not set."""
    compared = [outcome for outcome in outcomes if outcome.goodput is not None]
    rows = [
        (
            str(outcome.seed),
            f"{each.seconds:.1f}",
            f"{each.reported / each.seconds:.2%}",
            f"{each.own / each.seconds:.2%}",
            f"{(each.reported - each.own) / each.seconds:+.2%}",
        )
        for outcome in compared
        if (each := outcome.goodput) is not None
    ]
    return Results(
        columns=("seed", "seconds", "in steps that counted, by report", "by own clock", "apart"),
        rows=rows,
        title="Goodput of the runs whose clock was not set",
    )


def summary(outcomes: Sequence[Outcome], seconds: float) -> str:
    bad = sum(bool(outcome.wrong) for outcome in outcomes)
    return (
        f"{happened(outcomes).total()} faults in {len(outcomes)} runs, with "
        f"{sum(outcome.restarts for outcome in outcomes)} restarts, in {seconds / 60:.0f} minutes: "
        f"{len(outcomes) - bad} runs ended like the undisturbed one, {bad} did not."
    )


def page(outcomes: Sequence[Outcome], output: str, arguments: Sequence[str]) -> str:
    line = "| {} | {} | {} | {} |".format
    requested = " ".join(["python benchmarks/soak.py", *arguments])
    lines = [
        f"`{requested}`:",
        textwrap.fill(output, 100),
        "",
        line(*HEAD),
        "| --- | --- | --- | --- |",
    ]
    return "\n".join([*lines, *(line(f"`{row[0]}`", *row[1:]) for row in rows(outcomes))])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=500, help="run until so many came about")
    parser.add_argument("--runs", type=int, default=ENOUGH, help="so many runs at most")
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--directory", help="where runs are; those that went wrong stay")
    add_json_option(parser)
    parser.add_argument("--write", action="store_true", help=f"update docs/{PAGE.name}")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
