"""What it costs a step that `phalanx run` records every fit, in parts.

    python benchmarks/recording.py

Whole fits with and without records differ by less than a busy machine differs from itself.
So each part is measured on its own, and with the step that it is compared to in turn, step by
step in one process; the sum is the cost.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from statistics import median

import keras
import numpy as np
from tables import Results, add_json_option, show

from phalanx.monitoring.event_log import event_log_of
from phalanx.monitoring.events import TrainMetrics
from phalanx.monitoring.memory import resident_bytes
from phalanx.monitoring.phase_tracker import SECONDS, PhaseTracker
from phalanx.monitoring.throughput import ThroughputMeter
from phalanx.training.context import call_context, make_function, open_source
from phalanx.training.metrics import reader_of
from phalanx.training.timed_step import TimedSteps

BATCH = 64
STEPS = 500
SPLITS_A_SECOND = 1.0
COLUMNS = (
    "model",
    "ms per step",
    "recording, of the time",
    "µs each step",
    "ms each timed step",
    "µs a second for the rest",
)


def dense():
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(10)]
    )
    return model, np.random.default_rng(0).random((BATCH * 100, 64), "float32")


def convolutional():
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    return model, np.random.default_rng(0).random((BATCH * 25, 28, 28, 1), "float32")


def seconds_of(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def every_step() -> float:
    """Seconds that the pulse and the laps take of each step."""
    phase_tracker = PhaseTracker()
    meter = ThroughputMeter(clock=time.monotonic, phases=phase_tracker.totals)

    def steps():
        for step in range(2000):
            for phase in ("callbacks", "compute", "callbacks", "compute"):
                phase_tracker.enter(phase)
            phase_tracker.at(step=step)
            meter.lap(1, BATCH)
        meter.close(step=0, memory_bytes=0)

    return median(seconds_of(steps) for _ in range(20)) / 2000


def each_second() -> float:
    """Seconds that a heartbeat and records take of each second."""
    with tempfile.TemporaryDirectory() as directory:
        log = event_log_of(directory, 0)
        event = TrainMetrics(step=1, epoch=0, batch=0, logs={"loss": 0.5}, learning_rate=0.1)
        record = median(seconds_of(lambda: log.append(event)) for _ in range(200))
    memory = median(seconds_of(resident_bytes) for _ in range(200))
    return (record + memory) / SECONDS + record


def each_split(make) -> tuple[float, float]:
    """A plain step's seconds, and what a timed step and a reading take beyond it."""
    model, x = make()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    y = np.zeros(len(x), "int64")
    with call_context(model) as stage:
        source = open_source(stage, "fit", 0, x, y, batch_size=BATCH)
        function, iterator = make_function(stage, "train", source), source.open(0)
        timed, reader = TimedSteps.of(function), reader_of(model, function)

        def split():
            reader.read(timed.run(iterator, communication=False))

        plain, with_split = [], []
        for _ in range(STEPS):
            plain.append(seconds_of(lambda: function.on_iterator(iterator, 1)))
            with_split.append(seconds_of(split))
    return median(plain), median(with_split) - median(plain)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_json_option(parser)
    options = parser.parse_args()
    step_cost, second_cost = every_step(), each_second()
    rows = []
    for make in (dense, convolutional):
        step, split = each_split(make)
        share = step_cost / step + split * SPLITS_A_SECOND + second_cost
        rows.append(
            (
                make.__name__,
                f"{step * 1e3:.2f}",
                f"{share:.2%}",
                f"{step_cost * 1e6:.1f}",
                f"{split * 1e3:.2f}",
                f"{second_cost * 1e6:.0f}",
            )
        )
    show(Results(columns=COLUMNS, rows=rows), as_json=options.json)


if __name__ == "__main__":
    main()
