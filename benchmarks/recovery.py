"""How long does it take from a kill to the next trained step?

    python benchmarks/recovery.py           the whole comparison, some minutes
    python benchmarks/recovery.py --write   the same, and docs/benchmarks.md with it

Two workers train a small model by `phalanx run --max-restarts 1` with `BackupAndRestore`. One of
them is killed by SIGKILL; the clock stops when both have trained a step again. With the process
that stands ready, and without it: it is killed first.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypeVar

import psutil
from markers import replace_between
from progress import report
from rounds import round_options
from step_time.environment import ROOT, versions
from step_time.report import measured_on
from tables import Results, markdown_table, show

PAGE = ROOT / "docs" / "benchmarks.md"
T = TypeVar("T")
PACKAGES = ("phalanx", "keras", "tensorflow-cpu")
TIMEOUT = 300.0
COLUMNS = ("restarted workers", "median s", "fastest", "slowest")
KINDS = {
    "fresh": "new processes",
    "forked": "forked from the pre-forked process",
}
SCRIPT = """
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(4096, 32)).astype("float32")
model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(1e-3), "mse")
kept = keras.callbacks.BackupAndRestore("backup", save_freq=50)
model.fit(x, x[:, :1], batch_size=64, epochs=10_000, verbose=0, callbacks=[kept])
"""


def main() -> None:
    options = round_options(__doc__, PAGE)
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(options.rounds):
        for kind, found in seconds.items():
            found.append(_recovery(kind))
            report(f"round {number + 1} of {options.rounds}: {found[-1]:.1f} s {KINDS[kind]}")
    report("")
    rows = [
        (KINDS[kind], f"{median(all_):.1f}", f"{min(all_):.1f}", f"{max(all_):.1f}")
        for kind, all_ in seconds.items()
    ]
    show(Results(columns=COLUMNS, rows=rows), as_json=options.json)
    if options.write:
        replace_between(PAGE, "recovery", _markdown(rows, options.rounds))


def _recovery(kind: str) -> float:
    """Seconds from SIGKILL to the first step that both workers have trained again."""
    with tempfile.TemporaryDirectory(prefix="recovery-") as place:
        directory = Path(place)
        (directory / "train.py").write_text(SCRIPT)
        requested = ("--workers", "2", "--max-restarts", "1", "--name", "it", "train.py")
        with (directory / "output.txt").open("w") as output:
            run = subprocess.Popen(
                [sys.executable, "-m", "phalanx", "run", *requested],
                cwd=directory,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            _until(lambda: _both_trained(directory, 0), run)
            (ready,) = _until(lambda: _children(run, "phalanx-prefork"), run)
            if kind == "fresh":
                ready.kill()
                _until(lambda: [] if _children(run, "phalanx-prefork") else [True], run)
            workers = [
                each
                for each in psutil.Process(run.pid).children()
                if each.status() != psutil.STATUS_ZOMBIE and "phalanx.worker" in each.cmdline()
            ]
            killed = time.time()
            workers[-1].kill()
            return max(_until(lambda: _both_trained(directory, 1), run)) - killed
        finally:
            run.terminate()
            run.wait(60)


def _both_trained(directory: Path, attempt: int) -> list[float]:
    """When each worker had trained its first step of an attempt; nothing until both have."""
    marks = directory.glob(f"runs/it/attempts/{attempt}/worker-*.trained")
    times = [float(text.split()[0]) for mark in marks if (text := mark.read_text())]
    return times if len(times) == 2 else []


def _children(run: subprocess.Popen[bytes], name: str) -> list[psutil.Process]:
    return [
        each
        for each in psutil.Process(run.pid).children()
        if each.name() == name and each.status() != psutil.STATUS_ZOMBIE
    ]


def _until(answer: Callable[[], list[T]], run: subprocess.Popen[bytes]) -> list[T]:
    end = time.monotonic() + TIMEOUT
    while not (found := answer()):
        if run.poll() is not None or time.monotonic() > end:
            sys.exit(f"The run ended with {run.poll()} before it had recovered.")
        time.sleep(0.05)
    return found


def _markdown(rows: list[tuple[str, ...]], rounds: int) -> str:
    lines = [
        f"`python benchmarks/recovery.py --write`: seconds from SIGKILL to the next step, in "
        f"{rounds} runs each, including the wait of one second before a first restart.",
        "",
        measured_on(versions(Path(sys.executable), PACKAGES)),
        "",
        *markdown_table(COLUMNS, rows),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
