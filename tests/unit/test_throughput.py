"""The numbers of throughput, from laps and splits with a clock of our own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.monitoring.phase_tracker import PhaseTracker
from phalanx.monitoring.throughput import (
    WARM_UP,
    StepSplit,
    ThroughputMeter,
    percentile,
    time_fractions_of,
)


class Scene:
    """Training by a clock that is turned by hand."""

    def __init__(self):
        self.now = 50.0
        self.phase_tracker = PhaseTracker(clock=lambda: self.now)
        self.phase_tracker.enter("compute")
        self.meter = ThroughputMeter(clock=lambda: self.now, phases=self.phase_tracker.totals)

    def spend(self, seconds, phase="compute"):
        with self.phase_tracker.during(phase):
            self.now += seconds

    def lap(self, seconds=1.0, steps=1, samples=8, callbacks=0.0):
        self.spend(seconds)
        self.spend(callbacks, "callbacks")
        self.meter.lap(steps, samples)

    def warm_up(self):
        for _ in range(WARM_UP):
            self.lap(100.0)

    def close(self, step=0):
        return self.meter.close(step=step, memory_bytes=7)


@pytest.fixture
def scene():
    return Scene()


@pytest.fixture
def warm():
    scene = Scene()
    scene.warm_up()
    return scene


def test_the_first_executions_are_not_counted(scene):
    scene.warm_up()
    assert scene.close() is None
    scene.lap()
    assert scene.close().steps == 1


def test_steps_seconds_and_samples(warm):
    for _ in range(3):
        warm.lap(2.0, steps=4, samples=40)
    numbers = warm.close(step=99)
    assert (numbers.step, numbers.steps, numbers.seconds) == (99, 12, 6.0)
    assert (numbers.samples, numbers.samples_per_second) == (120, 20.0)
    assert numbers.step_seconds == {"p50": 0.5, "p95": 0.5}
    assert numbers.memory_bytes == 7


def test_numbers_restart(warm):
    warm.lap(2.0)
    warm.close()
    warm.lap(3.0)
    assert warm.close().seconds == 3.0


def test_a_slow_step_is_the_tail_and_not_the_middle(warm):
    for seconds in [1.0] * 9 + [5.0]:
        warm.lap(seconds)
    assert warm.close().step_seconds == {"p50": 1.0, "p95": 5.0}


def test_validation_is_not_training(warm):
    warm.lap(2.0)
    warm.spend(30.0, "validation")
    warm.meter.begin_epoch()
    warm.lap(2.0)
    numbers = warm.close()
    assert (numbers.seconds, numbers.step_seconds["p95"]) == (4.0, 2.0)


def test_what_traces_a_function_is_left_out(warm):
    warm.lap()
    warm.spend(500.0)
    warm.meter.discard_interval()
    warm.meter.split(StepSplit(input=400.0))
    warm.meter.lap(1, 8)
    warm.lap(2.0)
    numbers = warm.close()
    assert (numbers.steps, numbers.seconds, numbers.time_fractions["input"]) == (1, 2.0, None)


def test_shares_of_what_was_measured(warm):
    warm.lap(9.0, callbacks=1.0)
    warm.meter.split(StepSplit(input=2.0, busy=5.0, communication=3.0))
    warm.spend(10.0, "checkpoint")
    assert warm.close().time_fractions == pytest.approx(
        {"input": 0.1, "communication": 0.15, "callbacks": 0.05, "checkpoint": 0.5, "compute": 0.2}
    )


def test_sampled_steps_stand_for_all(warm):
    for i in range(10):
        if i % 5 == 0:
            warm.meter.split(StepSplit(input=0.5))
        warm.lap(1.0)
    time_fractions = warm.close().time_fractions
    assert time_fractions["input"] == pytest.approx(0.5)
    assert time_fractions["communication"] is None
    assert time_fractions["compute"] == pytest.approx(0.5)


def test_what_cannot_be_counted_is_none(warm):
    warm.lap(samples=None)
    numbers = warm.close()
    assert numbers.samples is numbers.samples_per_second is None


def test_a_worker_in_its_own_words(warm):
    warm.lap(4.0, callbacks=1.0)
    warm.meter.split(StepSplit(input=0.5, busy=2.0, communication=1.5))
    own = warm.meter.own_times(2, 11)
    assert (own.rank, own.input, own.compute, own.communication) == (2, 0.5, 2.0, 1.5)
    assert (own.callbacks, own.memory_bytes, own.busy) == (1.0, 11, 3.5)


PARTS = st.dictionaries(
    st.sampled_from(["input", "communication", "callbacks", "checkpoint"]),
    st.none() | st.floats(0, 1e6),
)


@given(st.floats(0, 1e6), PARTS)
def test_shares_add_up_to_one(seconds, parts):
    time_fractions = time_fractions_of(seconds, parts)
    assert set(time_fractions) == {*parts, "compute"}
    known = [share for share in time_fractions.values() if share is not None]
    assert sum(known) == pytest.approx(1.0)
    assert all(0 <= share <= 1 + 1e-9 for share in known)


def test_percentiles_are_weighed():
    import numpy as np

    values, weights = np.array([3.0, 1.0, 2.0]), np.array([1, 98, 1])
    assert percentile(values, weights, 0.5) == 1.0
    assert percentile(values, weights, 0.99) == 2.0
    assert percentile(values, weights, 1.0) == 3.0
