"""Training steps that look for what is wrong, and like ones that do not, on one of several workers.

See debugging.py.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import keras
import numpy as np
from recording import BATCH
from step_time.environment import ROOT

from phalanx import clip
from phalanx.monitoring.flight_recorder import flight
from phalanx.monitoring.phase_tracker import PhaseTracker
from phalanx.training import step_function as steps
from phalanx.training.batch_arrivals import GraphBatchProbe
from phalanx.training.context import call_context, make_function, open_source
from phalanx.training.nonfinite_capture import capture_dir
from phalanx.training.step_runner import StepRunner

sys.path.insert(0, str(ROOT / "examples"))
from mnist import build_model

WORKERS = 2
STEPS, UNCOUNTED = 70, 10
"""Of each kind, in a round."""

PHASES = ("callbacks", "compute", "callbacks", "compute")
Seconds = tuple[float, float]
"""Passed; of the process's processors."""

KINDS = ((False, False), (True, False), (True, True))
"""Whether a step asks if gradients are finite, and notes in the graph that its batch has come."""


def mnist():
    """The model of examples/mnist.py."""
    return build_model(), np.random.default_rng(0).random((BATCH * 25, 28, 28, 1), "float32")


def rounds_of(make: Callable, batch: int, rounds: int) -> list[list[list[float]]]:
    """For each round the seconds of a step, of the check, and of the recorder's two parts.

    Each round has them twice: as time that passed, and as time of the process's processors.
    """
    return [_round(make, batch, number) for number in range(rounds)]


def _round(make: Callable, batch: int, number: int) -> list[list[float]]:
    """Steps traced again: two like functions differ at random, by more than what is looked for."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stages:
        capture_dir().folder = Path(directory)
        flight.open(Path(directory) / "worker-0.flight", rank=0, attempt=0, workers=1)
        stages.callback(flight.close)
        order = [*range(len(KINDS))][:: 1 if number % 2 else -1]
        actions = {kind: _step(make, batch, stages, *KINDS[kind]) for kind in order}
        calls = _recorder_calls()
        python: list[Seconds] = []
        laps: dict[int, list[Seconds]] = {kind: [] for kind in order}
        for i in range(STEPS):
            for kind in order[:: 1 if i % 2 else -1]:
                laps[kind].append(_seconds_of(actions[kind]))
            python.append(_seconds_of(calls))
    bare, checked, both = (np.array(laps[kind][UNCOUNTED:]) for kind in range(len(KINDS)))
    parts = bare, checked - bare, both - checked, np.array(python[UNCOUNTED:])
    return np.median(parts, axis=1).T.tolist()


def _seconds_of(action: Callable[[], object]) -> Seconds:
    """How long it takes, and how long it keeps the process's processors busy."""
    started, busy = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - started, time.process_time() - busy


def _step(
    make: Callable, batch: int, stages: ExitStack, checks: bool, notes: bool
) -> Callable[[], None]:
    """A step as `fit` runs it."""
    model, x = make()
    x = np.concatenate([x] * (batch // BATCH))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD()
    model.compile(optimizer if checks else clip.attach(optimizer, on_nonfinite="ignore"), loss)
    stage = stages.enter_context(call_context(model))
    y = np.zeros(len(x), "int64")
    source = open_source(stage, "fit", 0, x, y, batch_size=batch * WORKERS)
    with _noting(notes):
        function = make_function(stage, "train", source)
    executor, iterator = StepRunner(model, function, []), source.open(0)
    return lambda: executor.run(iterator, 1)


@contextmanager
def _noting(notes: bool) -> Iterator[None]:
    """Have step functions note arrivals, or not."""
    if notes:
        yield
        return
    with mock.patch.object(steps.GraphBatchProbe, "for_recorder", return_value=None):
        yield


def _recorder_calls() -> Callable[[], None]:
    """The Python calls of a step to the flight recorder."""
    phase_tracker, arrivals = PhaseTracker(), GraphBatchProbe()
    phase_tracker.follow(flight)

    def calls() -> None:
        for phase in PHASES:
            phase_tracker.enter(phase)
        with flight.execution("train", 1, arrivals):
            pass

    return calls
