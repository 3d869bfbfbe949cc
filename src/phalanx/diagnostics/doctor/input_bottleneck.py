"""Is the input or the training step the slower one, and which setting would help?

`phalanx data bench script.py` and `phalanx data inspect script.py` start this module in a process
of their own. The script is run up to its first `fit`.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from phalanx.data.benchmark import SECONDS, StageSpeed, stage_speeds
from phalanx.data.inspection.inspect import inspect
from phalanx.data.pipelines.pipeline import pipeline
from phalanx.diagnostics.doctor.fit_capture import CapturedFit, first_fit
from phalanx.errors import ConfigurationError
from phalanx.keras_compat.data_adapters import adapt
from phalanx.training.fit import fit
from phalanx.worker.run_script import Target

ENOUGH = 1.2
"""Times what the step consumes: an input this fast is never waited for."""
_BY_HAND = 'or give the source to phalanx.data.pipeline(..., cache="memory")'
_ADVICE = {
    "Map": "Set num_parallel_calls=tf.data.AUTOTUNE in this map.",
    "ParallelMap": f"Put .cache() after this map if what it gives fits into memory, {_BY_HAND}.",
    "FlatMap": "It comes from a generator, one by one: give phalanx.data.pipeline an object with "
    "__len__ and __getitem__.",
    "TFRecord": "Read several files at a time: num_parallel_reads=tf.data.AUTOTUNE.",
    "Interleave": "Set num_parallel_calls=tf.data.AUTOTUNE in this interleave.",
    "Shuffle": "Take a smaller buffer, or phalanx.data.pipeline, which shuffles without one.",
    "Batch": "Batch earlier and map global batches: .batch(n).map(f).",
    "read, shuffle, batch": 'Keep samples: cache="memory" or "disk:PATH".',
    "map": 'Keep what map gives: cache="memory"; or do it in more processes: phalanx run '
    "--data-workers 2, and service=True.",
    "augment": "Do it in more processes: phalanx run --data-workers 2, and service=True.",
    "map_batches": "Do it in more processes: phalanx run --data-workers 2, and service=True.",
}


def slowest(stages: Sequence[StageSpeed]) -> StageSpeed:
    """The stage that adds most to the time that a sample takes."""
    added, before = [], 0.0
    for stage in stages:
        added.append(1 / stage.rate - before)
        before = max(before, 1 / stage.rate)
    return stages[int(np.argmax(added))]


def verdict(stages: Sequence[StageSpeed], consumed: float | None) -> str:
    """What comes of the measurement, in words.

    Args:
        stages: the pipeline's, in order.
        consumed: samples a second that the step takes; None where that is not known.
    """
    given, worst = stages[-1].rate, slowest(stages)
    advice = _ADVICE.get(worst.name, "See whether less can be done there.")
    if consumed is None:
        return f"Most of the time goes into {worst.name!r}. {advice}"
    if given >= ENOUGH * consumed:
        return (
            f"The input gives {given / consumed:.1f} times what the step consumes: nothing waits "
            "for it."
        )
    share = 1 - min(1.0, given / consumed)
    return (
        f"The step waits for the input about {share:.0%} of the time. Most of that goes into "
        f"{worst.name!r}. {advice}"
    )


def consumed_by(captured: CapturedFit, dataset: tf.data.Dataset, seconds: float = SECONDS) -> float:
    """Samples a second of training on one batch again and again, which costs no input."""
    batch = next(iter(dataset))
    rows = int(tf.nest.flatten(batch)[0].shape[0])
    again = tf.data.Dataset.from_tensors(batch).repeat()

    def timed(steps: int) -> float:
        begin = time.perf_counter()
        fit(captured.model, again, steps_per_epoch=steps, epochs=1, verbose=0)
        return time.perf_counter() - begin

    timed(3)  # traced and compiled here
    few, steps = timed(3), 10
    while (many := timed(3 + steps)) - few < seconds and steps < 1 << 20:
        steps *= 3
    return rows * steps / (many - few)


def dataset_of(captured: CapturedFit) -> tf.data.Dataset:
    """What `fit` would have read."""
    if isinstance(captured.x, tf.data.Dataset):
        return captured.x
    if isinstance(captured.x, np.ndarray) and isinstance(captured.y, np.ndarray):
        return pipeline((captured.x, captured.y), captured.batch_size or 32)
    return adapt(captured.x, captured.y, batch_size=captured.batch_size).get_tf_dataset()


def main(arguments: list[str]) -> int:
    """`bench` or `inspect`, options, and a script or `module:function`; 2 where there is no fit."""
    command, number, *rest = arguments
    if rest[0] == "-c":
        captured, dataset = None, _from_function(rest[1])
    else:
        captured = first_fit(Target.from_arguments(rest))
        if captured is None:
            print(f"{rest[1]} calls no fit, so there is no input to look at.")
            return 2
        dataset = dataset_of(captured)
    if command == "inspect":
        seen = inspect(dataset, workers=int(number))
        print(seen)
        return 0 if seen.is_right else 1
    stages = stage_speeds(dataset, seconds=float(number))
    consumed = None if captured is None else consumed_by(captured, dataset, float(number))
    _show(stages, consumed)
    return 0


def _from_function(name: str) -> tf.data.Dataset:
    sys.path.insert(0, os.getcwd())
    module, _, function = name.partition(":")
    made: Callable[[], Any] = getattr(importlib.import_module(module), function)
    dataset = made()
    if not isinstance(dataset, tf.data.Dataset):
        raise ConfigurationError(
            f"{name} must give a tf.data.Dataset; found {type(dataset).__name__}. Return the "
            "dataset that fit would be given."
        )
    return dataset


def _show(stages: Sequence[StageSpeed], consumed: float | None) -> None:
    table = Table("up to", "samples/s", "of the step", box=None)
    for stage in stages:
        share = "" if consumed is None else f"{stage.rate / consumed:.2f}"
        table.add_row(stage.name, f"{stage.rate:,.0f}", share)
    if consumed is not None:
        table.add_row("the training step", f"{consumed:,.0f}", "1.00", style="bold")
    console = Console(width=100, highlight=False)
    console.print(table)
    console.print(verdict(stages, consumed), soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
