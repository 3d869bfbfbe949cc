"""What does a checkpoint cost a training, beside Keras's own way to save?

    python benchmarks/checkpoint.py           the whole comparison, some minutes
    python benchmarks/checkpoint.py --write   the same, and docs/benchmarks.md with it

One device trains a model whose state (weights and Adam's two slots) is 400 MB. In turn: some
steps that no one saves, and as many with one checkpoint among them; by
`phalanx.callbacks.Checkpoint`, beside training and waiting for it, and by `model.save`, which
waits. A stall is how long the step after which is saved takes longer; the cost is how much longer
all the steps take, writing beside them included.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from markers import replace_between
from progress import report
from rounds import round_options
from step_time.environment import ROOT, versions
from step_time.report import processor
from tables import Results, show

import phalanx
from phalanx.callbacks import Checkpoint, every_n_steps
from phalanx.monitoring.phase_tracker import phase_tracker

PAGE = ROOT / "docs" / "benchmarks.md"
PACKAGES = ("phalanx", "keras", "tensorflow-cpu", "safetensors")
WIDTH, LAYERS = 2900, 4  # 4 * 2900^2 weights, three times, of 4 bytes: 400 MB
STEPS = 40
SAVED_AFTER = 6
CADENCE = 60.0
COLUMNS = ("saved by", "pause s", "vs. model.save", "extra s", "extra time, one save per minute")
KINDS = {
    "beside": "`Checkpoint()`",
    "waiting": "`Checkpoint(async_save=False)`",
    "keras": "`model.save`",
}


class Laps(keras.callbacks.Callback):
    """Notes when each step ended, and saves by Keras after one of them if asked."""

    def __init__(self, path: str | None = None) -> None:
        super().__init__()
        self.ends: list[float] = []
        self.saving = 0.0
        self._path = path

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._path and batch + 1 == SAVED_AFTER:
            began = time.perf_counter()
            self.model.save(self._path)
            self.saving = time.perf_counter() - began
        self.ends.append(time.perf_counter())


def main() -> None:
    options = round_options(__doc__, PAGE)
    model = _model()
    x = np.random.default_rng(0).normal(size=(8 * STEPS, WIDTH)).astype("float32")
    report("first steps")
    _train(model, x, [])
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for number in range(options.rounds):
        for kind, pairs in found.items():
            report(f"round {number + 1} of {options.rounds}: {KINDS[kind]}")
            plain = _plain(model, x)
            stall, whole = _saved(model, x, kind)
            pairs.append((stall, whole - plain))
    report("")
    rows = _rows(found)
    show(Results(columns=COLUMNS, rows=rows), as_json=options.json)
    if options.write:
        replace_between(PAGE, "checkpoint", _markdown(rows, options.rounds, _size(model)))


def _model() -> Any:
    layers = [keras.layers.Dense(WIDTH, "relu", use_bias=False) for _ in range(LAYERS)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers])
    model.compile("adam", "mse")
    return model


def _size(model: Any) -> int:
    return sum(v.numpy().nbytes for v in [*model.variables, *model.optimizer.variables])


def _train(model: Any, x: Any, callbacks: list[Any]) -> None:
    phalanx.fit(model, x, x, batch_size=8, verbose=0, shuffle=False, callbacks=callbacks)


def _plain(model: Any, x: Any) -> float:
    laps = Laps()
    _train(model, x, [laps])
    return laps.ends[-1] - laps.ends[0]


def _saved(model: Any, x: Any, kind: str) -> tuple[float, float]:
    """Seconds that training made no progress for the checkpoint, and that its steps took."""
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as place:
        if kind == "keras":
            laps = Laps(str(Path(place) / "model.keras"))
            _train(model, x, [laps])
            return laps.saving, laps.ends[-1] - laps.ends[0]
        laps = Laps()
        base = int(model.optimizer.iterations.numpy())
        saving = Checkpoint(
            place,
            every=every_n_steps(_first_multiple(base)),
            async_save=kind == "beside",
        )
        stalls: list[float] = []
        _train(model, x, [laps, saving, _Stalls(stalls)])
        return stalls[-1], laps.ends[-1] - laps.ends[0]


def _first_multiple(base: int) -> int:
    """A number of which only one multiple lies in the steps to come: where to save."""
    return base + SAVED_AFTER


class _Stalls(keras.callbacks.Callback):
    """Seconds spent in saving, up to the last batch: what comes at the end is not counted."""

    def __init__(self, seconds: list[float]) -> None:
        super().__init__()
        self._seconds = seconds
        self._before: Callable[[], float] = lambda: phase_tracker.totals()["checkpoint"]
        self._started = 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 0:
            self._started = self._before()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._seconds.append(self._before() - self._started)


def _rows(found: dict[str, list[tuple[float, float]]]) -> list[tuple[str, ...]]:
    of_keras = median(stall for stall, _ in found["keras"])
    rows = []
    for kind, pairs in found.items():
        stall = median(stall for stall, _ in pairs)
        cost = median(cost for _, cost in pairs)
        row = (f"{stall:.2f}", f"{stall / of_keras:.2f}", f"{cost:.2f}", f"{cost / CADENCE:.1%}")
        rows.append((KINDS[kind], *row))
    return rows


def _markdown(rows: list[tuple[str, ...]], rounds: int, size: int) -> str:
    software = versions(Path(sys.executable), PACKAGES)
    named = ", ".join(f"{name} {number}" for name, number in software.items())
    lines = [
        f"Medians of {rounds} rounds, a state of {size / 1e6:.0f} MB, one device on {processor()}; "
        f"{named}.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---|---:|---:|---:|---:|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
