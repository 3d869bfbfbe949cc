"""Does a script that waits for JPEG files get faster with a second worker?

    python benchmarks/decoding.py           the whole comparison, some minutes
    python benchmarks/decoding.py --json    the same, as JSON
    python benchmarks/decoding.py --write   the same, and docs/benchmarks.md with it

`benchmarks/decoding/train.py` is a plain Keras script: paths, shuffle, a map that decodes, batch, a
very small model. `phalanx run` runs it with one and with two workers, each on a core of its own,
in turn. Two workers run it twice: as it is, where each decodes its own rows only, and with a step
after the map that keeps it so that each decodes all. A run of its own counts what is decoded,
in a function that slows it down.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from markers import replace_between
from progress import report
from rich.console import Console
from rich.table import Table
from step_time.environment import ROOT, versions
from step_time.report import processor

PAGE = ROOT / "docs" / "benchmarks.md"
SCRIPT = Path(__file__).parent / "decoding" / "train.py"
PACKAGES = ("phalanx", "keras", "tensorflow-cpu")
COLUMNS = ("run", "samples/s", "vs. one worker", "decoded by each worker", "CPU s by each worker")


class Contender(NamedTuple):
    """One way to run the script."""

    workers: int
    flags: tuple[str, ...] = ()


CONTENDERS = {
    "one worker": Contender(1),
    "two workers": Contender(2),
    "two workers, each decodes all": Contender(2, ("--late",)),
}


def main() -> None:
    options = _options()
    found: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory(prefix="decoding-") as place:
        report("writing files")
        write_images(Path(place), options.images)
        counted = {name: run(one, place, "--count") for name, one in CONTENDERS.items()}
        for number in range(options.rounds):
            for name, one in CONTENDERS.items():
                report(f"round {number + 1} of {options.rounds}: {name}")
                found[name].append(run(one, place))
    report("")
    results = [summary(name, counted[name], found) for name in CONTENDERS]
    if options.json:
        print(json.dumps({"images": options.images, "runs": results}, indent=2))
    else:
        table = Table(*COLUMNS)
        for one in results:
            table.add_row(*cells(one))
        Console(width=110).print(table)
    if options.write:
        replace_between(PAGE, "decoding", markdown(results, options))


def write_images(place: Path, number: int) -> None:
    """JPEG files of 512 x 512 pixels."""
    import tensorflow as tf

    random = np.random.default_rng(1)
    for index in range(number):
        coarse = random.integers(0, 255, (32, 32, 3)).astype("uint8")
        image = tf.cast(tf.image.resize(coarse, (512, 512)), tf.uint8)
        (place / f"{index}.jpg").write_bytes(tf.io.encode_jpeg(image).numpy())


def run(one: Contender, place: str, *flags: str) -> list[dict[str, Any]]:
    """What each worker has written.

    Raises:
        RuntimeError: the run failed; the text is its last words.
    """
    cores = sorted(os.sched_getaffinity(0))[: one.workers]
    with tempfile.TemporaryDirectory(prefix="decoding-run-") as results:
        words = ["run", "--workers", str(one.workers), str(SCRIPT), place, results]
        done = subprocess.run(
            [sys.executable, "-m", "phalanx", *words, *one.flags, *flags],
            cwd=results,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        return [json.loads(path.read_text()) for path in Path(results).glob("*.json")]


def summary(
    name: str, counted: list[dict[str, Any]], found: dict[str, list[list[dict[str, Any]]]]
) -> dict[str, Any]:
    """One line of the table: medians over the rounds."""

    def rate(workers: list[dict[str, Any]]) -> float:
        return median(value for one in workers for value in one["samples_per_second"])

    ratios = [
        rate(own) / rate(one) for own, one in zip(found[name], found["one worker"], strict=True)
    ]
    seconds = [
        value for workers in found[name] for one in workers for value in one["processor_seconds"]
    ]
    return {
        "run": name,
        "samples_per_second": median(rate(workers) for workers in found[name]),
        "ratio": median(ratios),
        "decoded": sorted((one["decoded_per_epoch"] for one in counted), reverse=True),
        "processor_seconds": median(seconds),
        "loss": counted[0]["loss"],
    }


def cells(one: dict[str, Any]) -> tuple[str, ...]:
    """The line as text."""
    return (
        one["run"],
        f"{one['samples_per_second']:,.0f}",
        f"{one['ratio']:.2f}",
        ", ".join(f"{number:,.0f}" for number in one["decoded"]),
        f"{one['processor_seconds']:.1f}",
    )


def markdown(results: list[dict[str, Any]], options: argparse.Namespace) -> str:
    """The table as Markdown, with what it was measured on."""
    named = ", ".join(f"{n} {v}" for n, v in versions(Path(sys.executable), PACKAGES).items())
    lines = [
        f"`python benchmarks/decoding.py --write`: medians of {options.rounds} rounds on "
        f"{processor()}; {named}. {options.images:,} files in an epoch.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---|---:|---:|---:|---:|",
        *(f"| {' | '.join(cells(one))} |" for one in results),
    ]
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=1000, help="JPEG files")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    parser.add_argument("--write", action="store_true", help=f"update {PAGE.relative_to(ROOT)}")
    return parser.parse_args()


if __name__ == "__main__":
    main()
