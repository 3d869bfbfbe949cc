"""Who is a straggler, from tables of every worker's own times; and the callbacks' options."""

import pytest

from phalanx.callbacks import StragglerDetector, ThroughputMonitor
from phalanx.callbacks.stragglers import StragglerStatistics, describe
from phalanx.errors import ConfigurationError
from phalanx.monitoring.throughput import ThroughputNumbers, WorkerTimes

EVEN = [0.010, 0.010, 0.010]
SLOW_1 = [0.010, 0.030, 0.010]


def worker(rank, compute=0.010, input=0.0, callbacks=0.0):
    return WorkerTimes(
        rank=rank,
        input=input,
        compute=compute,
        callbacks=callbacks,
        communication=0.001,
        memory_bytes=1 << 20,
    )


def workers(computes):
    return [worker(rank, compute) for rank, compute in enumerate(computes)]


class Scene:
    def __init__(self, **options):
        self.detector = StragglerStatistics(**{"factor": 1.5, "windows": 2, **options})
        self.step = 0

    def window(self, of_each):
        """Ten more steps."""
        of_each = workers(of_each) if isinstance(of_each[0], float) else of_each
        first, self.step = self.step + 1, self.step + 10
        return self.detector.take(self.step, first, of_each)


def test_a_slow_worker_is_found_in_the_second_window_and_dated_to_the_first():
    scene = Scene()
    assert scene.window(EVEN) == []
    assert scene.window(SLOW_1) == []
    (found,) = scene.window(SLOW_1)
    assert (found.rank, found.step, found.since_step, found.resolved) == (1, 30, 11, False)
    assert found.factor == pytest.approx(3.0)
    assert scene.detector.stragglers == [found]
    assert scene.window(SLOW_1) == [], "said once"


def test_one_slow_window_proves_nothing():
    scene = Scene()
    for _ in range(4):
        assert scene.window(SLOW_1) == scene.window(EVEN) == []


def test_ended_when_it_keeps_up_for_as_long():
    scene = Scene()
    scene.window(SLOW_1)
    scene.window(SLOW_1)
    assert scene.window(EVEN) == []
    assert scene.window(SLOW_1) == []
    assert scene.window(EVEN) == []
    (end,) = scene.window(EVEN)
    assert (end.rank, end.resolved, end.since_step, end.step) == (1, True, 1, 60)
    assert scene.detector.stragglers == []


def test_slow_again_after_it_was_ended():
    scene = Scene(windows=1)
    assert [len(scene.window(table)) for table in (SLOW_1, EVEN, SLOW_1)] == [1, 1, 1]


@pytest.mark.parametrize("cause", ["input", "compute", "callbacks"])
def test_the_cause_is_where_it_loses_most(cause):
    scene = Scene(windows=1)
    slow = {"compute": 0.012, "input": 0.002, "callbacks": 0.002, cause: 0.050}
    (found,) = scene.window([worker(0), worker(1, **slow), worker(2)])
    assert found.cause == cause


def test_two_workers_are_measured_by_each_other():
    scene = Scene(windows=1)
    (found,) = scene.window([0.010, 0.020])
    assert (found.rank, found.factor) == (1, pytest.approx(2.0))


def test_microseconds_make_no_straggler():
    assert Scene(windows=1).window([0.0001, 0.0004, 0.0001]) == []


@pytest.mark.parametrize(
    "table",
    [[worker(0)], [worker(0), worker(1, compute=None)], []],
    ids=["alone", "unmeasured", "no one"],
)
def test_nothing_to_compare(table):
    scene = Scene(windows=1)
    assert scene.detector.take(10, 1, table) == []


def numbers(of_each, step=10):
    return ThroughputNumbers(
        step=step,
        steps=10,
        seconds=1.0,
        samples=80.0,
        samples_per_second=80.0,
        step_seconds={"p50": 0.1, "p95": 0.2},
        time_fractions={"input": 0.25, "communication": None, "compute": 0.75},
        memory_bytes=1 << 20,
        workers=tuple(workers(of_each)),
    )


def test_only_the_chief_warns(caplog):
    callbacks = [StragglerDetector(windows=1), StragglerDetector(windows=1)]
    for callback in callbacks:
        callback.on_throughput(numbers(SLOW_1), is_chief=callback is callbacks[0])
        assert [found.rank for found in callback.stragglers] == [1]
    (output,) = caplog.messages
    assert "worker 1 is slow since step 1" in output
    assert "3.0 times" in output
    assert "its step itself takes longer" in output


def test_the_chief_says_that_it_keeps_up_again():
    callback = StragglerDetector(windows=1)
    callback.on_throughput(numbers(SLOW_1), is_chief=False)
    (found,) = callback.stragglers
    assert "slow since" in describe(found)
    callback.on_throughput(numbers(EVEN, step=20), is_chief=False)
    assert callback.stragglers == []


def test_throughput_in_one_line(caplog):
    caplog.set_level("INFO")
    callback = ThroughputMonitor()
    callback.on_throughput(numbers(EVEN), is_chief=True)
    callback.on_throughput(numbers(EVEN), is_chief=False)
    assert len(callback.numbers) == 2
    assert caplog.messages == [
        "step 10: 80 samples/s; step 100 ms (p95 200 ms); input 25%, compute 75%; "
        "memory 1 MiB, 1 MiB, 1 MiB"
    ]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ThroughputMonitor(every_n_seconds=0), "every_n_seconds must be .* found 0"),
        (lambda: ThroughputMonitor(every_n_seconds="5"), "found '5'"),
        (lambda: StragglerDetector(factor=1.0), "factor must be a number above 1; found 1.0"),
        (lambda: StragglerDetector(windows=0), "windows must be an integer of at least 1; found 0"),
    ],
)
def test_options_that_cannot_work(make, words):
    with pytest.raises(ConfigurationError, match=words):
        make()
