"""What needs no cluster: how fast it trains, and what of a pass is left."""

import pytest
import tensorflow as tf

from phalanx.callbacks import StragglerDetector, ThroughputMonitor
from phalanx.callbacks.callback import DistributedContext
from phalanx.callbacks.throughput import describe
from phalanx.monitoring.phase_tracker import PHASES
from phalanx.training.parameter_server.dataset_worker_data import ALL, CompletedBatches
from phalanx.training.parameter_server.ps_instrumentation import PSStepTimes
from phalanx.training.parameter_server.worker_step import StepResult


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def step(worker, seconds):
    return StepResult(
        samples=8,
        worker=worker,
        batch=0,
        staleness=0,
        seconds=seconds,
        gradient_norm=1.0,
        returned={},
        states=[],
        outputs=[],
    )


@pytest.fixture
def window():
    """Ten seconds of two workers, the second of which takes three times as long for a step."""
    clock = Clock()
    pace = PSStepTimes(2, every=10.0, clock=clock, phases=lambda: dict.fromkeys(PHASES, 0.0))
    pace.begin_epoch()
    for number in range(43):
        clock.now += 0.25
        pace.on_results([step(int(number % 4 == 3), 0.1 + 0.2 * (number % 4 == 3))])
        numbers = pace.close(number + 1)
        assert (numbers is not None) == (number == 42)
    return numbers


def test_samples_a_second_are_those_of_all_workers(window):
    assert window.steps == 40  # the first three are warming up
    assert window.samples_per_second == pytest.approx(32.0)
    assert window.step_seconds["p50"] == pytest.approx(0.25)


def test_each_workers_own_steps_are_measured(window):
    assert [each.rank for each in window.workers] == [1, 2]
    assert [each.compute for each in window.workers] == pytest.approx([0.1, 0.3])


def test_a_slow_worker_is_named_and_no_one_waits_for_it(window, caplog):
    callback = StragglerDetector(windows=1)
    callback.cluster = DistributedContext(ps_tasks=2)
    with caplog.at_level("WARNING"):
        callback.on_throughput(window, is_chief=True)
    assert [each.rank for each in callback.stragglers] == [2]
    assert "worker 2 is slow" in caplog.text
    assert "wait for it" not in caplog.text


def test_a_window_is_logged_with_what_the_chief_knows(window):
    line = describe(window)
    assert "32 samples/s" in line
    assert line.count("MiB") == 1
    ThroughputMonitor(log=False).on_throughput(window, is_chief=True)


def left(done, batches, number, worker=0):
    dataset = tf.data.Dataset.range(batches)
    kept = done.skip_completed(
        dataset, tf.constant(number, tf.int64), tf.constant(worker, tf.int64)
    )
    return [int(n) for n in kept]


def test_what_each_worker_did_is_left_out():
    done = CompletedBatches(number=2, rounds=((2, 1),))
    assert left(done, 8, 2) == [3, 4, 5, 6, 7]  # 0 and 2 were the first's, 1 the second's


def test_other_passes_are_complete():
    assert left(CompletedBatches(number=2, rounds=((2, 1),)), 4, 3) == [0, 1, 2, 3]


def test_what_was_broken_off_twice_is_left_out_twice():
    once = CompletedBatches().and_then(1, [2, 1])
    twice = once.and_then(1, [1, 0, 1])
    assert left(once, 8, 1) == [3, 4, 5, 6, 7]
    assert left(twice, 8, 1) == [4, 6, 7]
    assert CompletedBatches.from_json(twice.to_json(), by_worker=False) == twice


def test_a_later_pass_forgets_the_one_before():
    assert CompletedBatches(number=1, rounds=((2, 1),)).and_then(2, [0, 0]) == CompletedBatches(
        number=2
    )


def test_a_worker_with_data_of_its_own_leaves_out_its_own():
    done = CompletedBatches(number=0, rounds=((2, ALL),), by_worker=True)
    assert left(done, 4, 0, worker=0) == [2, 3]
    assert left(done, 4, 0, worker=1) == []
