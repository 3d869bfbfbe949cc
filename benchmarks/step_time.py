"""How long does a training step take, beside what else there is?

    python benchmarks/step_time.py                  the whole comparison, some minutes
    python benchmarks/step_time.py --write          the same, and docs/benchmarks.md with it

The contenders are installed on first use into an environment of their own
(`.cache/bench-venv`), so that the project's stays clean; `--setup` does only that.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from markers import replace_between
from progress import report
from step_time.environment import ROOT, contenders_python, versions
from step_time.measure import measure
from step_time.report import NAMES, as_data, describe, markdown, show
from step_time.workload import MODELS, STEPS

PAGE = ROOT / "docs" / "benchmarks.md"


def main() -> None:
    options = _options()
    python = contenders_python()
    if options.setup:
        return
    series = []
    steps = {model: options.steps or STEPS[model] for model in options.models}
    logs = Path(tempfile.mkdtemp(prefix="step-time-"))
    for workers in options.workers:
        series += measure(
            options.contenders,
            options.models,
            workers=workers,
            rounds=options.rounds,
            steps=steps,
            python=python,
            logs=logs,
            report=report,
        )
    report("")
    if failed := sorted({one.contender for one in series if one.error}):
        print(f"What {', '.join(failed)} printed is in {logs}", file=sys.stderr)
    about = describe(
        versions(python),
        rounds=options.rounds,
        steps=steps,
        command="python benchmarks/step_time.py --write",
    )
    if options.json:
        print(json.dumps(as_data(series, about=about), indent=2))
    else:
        show(series)
    if options.write:
        replace_between(PAGE, "step-time", markdown(series, about))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--setup", action="store_true", help="only install the contenders")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, help="steps of a block")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--contenders", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--json", action="store_true", help="every block's figure")
    parser.add_argument("--write", action="store_true", help=f"update {PAGE.relative_to(ROOT)}")
    return parser.parse_args()


if __name__ == "__main__":
    main()
