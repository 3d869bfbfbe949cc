"""Does `phalanx predict` take half the time with two workers of one core each?

    python benchmarks/predict.py --json

Eight .npy files of images of 28 x 28, and the MNIST CNN. In each round one worker and two workers
predict all of them, in turns, each with one CPU thread; the command has as many cores as workers.
The time is that of the whole command, with the start of the workers, and that of all files of the
busiest worker.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from progress import report
from step_time.workload import keras_model
from tables import Results, add_json_option, show

FILES = 8
COLUMNS = ("workers", "command s", "predicting s", "rows/s", "vs. one worker")
_PART = re.compile(r"rows in ([\d.]+) s")


class Seconds(NamedTuple):
    """Of the whole command, and of its busiest worker's parts."""

    command: float
    predicting: float


def main() -> None:
    options = _options()
    measured: dict[int, list[Seconds]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory(prefix="predict-") as place:
        _write(Path(place), options.rows)
        for number in range(options.rounds):
            for workers, seconds in measured.items():
                report(f"round {number + 1} of {options.rounds}: {workers} worker(s)")
                seconds.append(_predict(Path(place), workers))
    report("")
    medians = {
        workers: Seconds(*map(median, zip(*s, strict=True))) for workers, s in measured.items()
    }
    rows = [
        (
            str(workers),
            f"{found.command:.1f}",
            f"{found.predicting:.1f}",
            f"{FILES * options.rows / found.predicting:.0f}",
            f"{medians[1].predicting / found.predicting:.2f}",
        )
        for workers, found in medians.items()
    ]
    show(Results(columns=COLUMNS, rows=rows), as_json=options.json)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=20_000, help="rows of each of the files")
    add_json_option(parser)
    return parser.parse_args()


def _write(place: Path, rows: int) -> None:
    (place / "rows").mkdir()
    rng = np.random.default_rng(0)
    for number in range(FILES):
        images = rng.random((rows, 28, 28, 1), dtype=np.float32)
        np.save(place / "rows" / f"{number}.npy", images)
    keras_model(keras, "cnn").save(place / "model.keras")


def _predict(place: Path, workers: int) -> Seconds:
    words = ["model.keras", "rows", "out", "--restart", "--threads-per-worker", "1"]
    began = time.perf_counter()
    finished = subprocess.run(
        [sys.executable, "-m", "phalanx", "predict", *words, "--workers", str(workers)],
        cwd=place,
        # A worker also reads and writes, and would take a second core for that.
        preexec_fn=lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:workers]),
        capture_output=True,
        text=True,
        check=True,
    )
    command = time.perf_counter() - began
    lines = finished.stdout.splitlines()
    busy = [
        sum(float(s) for line in lines if f"[worker {rank}]" in line for s in _PART.findall(line))
        for rank in range(workers)
    ]
    return Seconds(command, max(busy))


if __name__ == "__main__":
    main()
