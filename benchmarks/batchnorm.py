"""What does it cost that BatchNormalization has the rows of all workers?

    python benchmarks/batchnorm.py           some minutes
    python benchmarks/batchnorm.py --write   the same, and docs/benchmarks.md with it

Two workers, a core each, train a convolutional model of ten such layers: in turn by steps in which
each layer has the rows of all workers, and by steps in which it has those of its worker.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from unittest import mock

import keras
import numpy as np
from fit_steps import steps_of
from markers import replace_between
from rounds import round_options
from step_time.environment import ROOT, versions
from step_time.report import measured_on
from tables import Results, markdown_table, show

from phalanx.testing import run_workers

PAGE = ROOT / "docs" / "benchmarks.md"
PACKAGES = ("phalanx", "keras", "tensorflow-cpu")
WORKERS, STEPS = 2, 10
FILTERS = (16, 16, 32, 32, 64)
BATCHES = (16, 64)
"""Samples of a worker."""

COLUMNS = ("samples", "each worker's rows", "all rows", "ratio")
Row = tuple[str, ...]


def main() -> None:
    options = round_options(__doc__, PAGE, rounds=15)
    rows = []
    for batch in BATCHES:
        own, whole = run_workers(_rounds, WORKERS, args=(batch, options.rounds), deadline=3600)[0]
        rows.append(
            (str(batch), f"{own * 1e3:.1f} ms", f"{whole * 1e3:.1f} ms", f"{whole / own:.2f}")
        )
    show(Results(columns=COLUMNS, rows=rows), as_json=options.json)
    if options.write:
        replace_between(PAGE, "batchnorm", _markdown(rows, options.rounds))


def _rounds(batch: int, rounds: int) -> tuple[float, float]:
    """Seconds of a step with each worker's rows, and with all; medians of rounds."""
    x = np.random.default_rng(0).random((batch * WORKERS * 4, 32, 32, 3), "float32")
    laps: tuple[list[float], list[float]] = ([], [])
    runners = []
    with ExitStack() as stages:
        for is_global in (False, True):
            with mock.patch(
                "phalanx.training.step_function.syncs_batchnorm", lambda which=is_global: which
            ):
                runners.append(steps_of(stages, _compiled(), x, batch * WORKERS))
                runners[-1](STEPS)  # Traces them.
        for number in range(rounds + 1):
            for place in (0, 1)[:: 1 if number % 2 else -1]:
                started = time.perf_counter()
                runners[place](STEPS)
                if number:
                    laps[place].append((time.perf_counter() - started) / STEPS)
    own, whole = map(median, laps)
    return own, whole


def _compiled() -> keras.Model:
    """Ten convolutions, each followed by a BatchNormalization."""
    layers = keras.layers
    x = inputs = keras.Input((32, 32, 3))
    for filters in FILTERS:
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.MaxPooling2D()(x)
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _markdown(rows: list[Row], rounds: int) -> str:
    return "\n".join(
        [
            f"`python benchmarks/batchnorm.py --rounds {rounds} --write`: time of a step, the "
            f"median of {rounds} rounds of {STEPS}; {WORKERS} workers, samples per worker.",
            "",
            measured_on(versions(Path(sys.executable), PACKAGES)),
            "",
            *markdown_table(COLUMNS, rows),
        ]
    )


if __name__ == "__main__":
    main()
