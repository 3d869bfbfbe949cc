"""How many workers a run continues with: tables, no processes."""

import pytest

from phalanx.errors import ConfigurationError
from phalanx.launcher.elastic import (
    BelowMinimum,
    ElasticMembership,
    MembershipChange,
    ScaleUpMonitor,
)
from phalanx.launcher.options import RunOptions, parse_workers
from phalanx.monitoring.event_log import RecordWriter, records_path

START, LATER = False, True
"""When a worker failed: before it had trained a step, or after."""


def worker_group(least=1, most=3):
    return ElasticMembership(least=least, most=most, first_wait=60.0, longest_wait=150.0)


def fails(size, *failures, now=0.0):
    return [size.failed(rank, trained=when, now=now) for rank, when in failures]


@pytest.mark.parametrize(
    ("failures", "members"),
    [
        ([(2, START)], (0, 1, 2)),
        ([(2, START), (2, START)], (0, 1)),
        ([(0, START), (0, START)], (1, 2)),
        ([(2, START), (1, START)], (0, 1, 2)),
        ([(2, START), (1, START), (2, START)], (0, 1, 2)),
        ([(2, START), (2, LATER), (2, START)], (0, 1, 2)),
        ([(2, LATER), (2, LATER), (2, LATER)], (0, 1, 2)),
        ([(2, START), (None, LATER), (2, START)], (0, 1, 2)),
        # A rank is a place among those that are in: 1 is member 2 when 1 is out.
        ([(1, START), (1, START), (1, START), (1, START)], (0,)),
    ],
)
def test_a_worker_that_fails_at_the_start_twice_in_a_row_is_left_out(failures, members):
    size = worker_group()
    fails(size, *failures)
    assert size.members == members


def test_what_is_said():
    size = worker_group()
    *_, change = fails(size, (2, START), (2, START))
    assert change == MembershipChange(why="worker 2 cannot restart: continuing with 2 of 3 workers")


def test_there_is_an_end_to_it():
    size = worker_group(least=2)
    fails(size, (2, START), (2, START))
    first, last = fails(size, (0, START), (0, START))
    assert first is None
    assert isinstance(last, BelowMinimum)
    assert "Worker 0 cannot restart, and --workers 2:3 asks for at least 2" in last.why
    assert size.members == (0, 1)


def test_a_run_of_one_size_never_changes():
    size = worker_group(least=3)
    assert fails(size, (2, START), (2, START), (2, START)) == [None] * 3
    assert size.could_not_start([1], now=0.0) is None
    assert not size.may_grow(1e9)


def test_a_process_that_cannot_be_started_needs_no_second_try():
    size = worker_group()
    assert isinstance(size.could_not_start([1], now=0.0), MembershipChange)
    assert size.members == (0, 2)
    assert size.could_not_start([], now=0.0) is None


def test_all_workers_of_a_lost_host_are_left_out_together():
    size = worker_group(least=1, most=6)
    size.could_not_start([1], now=0.0)
    change = size.could_not_start([3, 4], now=0.0)
    assert change == MembershipChange(
        why="workers 4, 5 cannot restart: continuing with 3 of 6 workers"
    )
    assert size.members == (0, 2, 3)
    assert isinstance(size.could_not_start([0, 1, 2], now=0.0), BelowMinimum)
    size.grow()
    assert size.could_not_start([5], now=0.0).at_no_cost
    assert size.members == (0, 2, 3)


def test_all_are_tried_again_and_it_works():
    size = worker_group()
    fails(size, (2, START), (2, START))
    assert size.may_grow(0.0)
    assert size.grow().why == "a checkpoint was saved: continuing with 3 of 3 workers again"
    assert size.members == (0, 1, 2)
    assert not size.may_grow(1e9)
    # It has trained: what fails later is like any failure.
    assert fails(size, (2, LATER), (2, START)) == [None, None]
    assert size.members == (0, 1, 2)


def test_tries_that_fail_come_ever_more_rarely_and_cost_nothing():
    size, now, waits = worker_group(), 1000.0, []
    fails(size, (2, START), (2, START))
    for _ in range(4):
        size.grow()
        (change,) = fails(size, (2, START), now=now)
        assert change.at_no_cost
        assert size.members == (0, 1)
        wait = next(w for w in range(1000) if size.may_grow(now + w))
        waits.append(wait)
        now += wait
    assert waits == [60, 120, 150, 150]
    assert change.why.startswith(
        "worker 2 still cannot start: continuing with 2 of 3 workers, and "
    )
    assert "trying again in 150 s" in change.why


def test_another_worker_that_fails_in_a_try_ends_it_too():
    size = worker_group()
    fails(size, (2, START), (2, START))
    size.grow()
    fails(size, (0, START))
    assert size.members == (0, 1)


class Clock:
    def __init__(self):
        self.time = 1000.0

    def __call__(self):
        return self.time


@pytest.fixture
def scene(tmp_path):
    clock, size = Clock(), worker_group()
    return clock, size, tmp_path


def saves(scene, ahead=0.0):
    clock, _, run = scene
    with RecordWriter(records_path(run, 0), clock=lambda: clock.time + ahead) as writer:
        writer.write("checkpoint", step=7, path="x")


def test_a_worker_group_grows_at_the_next_checkpoint(scene):
    clock, size, run = scene
    saves(scene)
    clock.time += 1
    fails(size, (2, START), (2, START))
    watch = ScaleUpMonitor(size.may_grow, run, now=clock)
    clock.time += 10
    assert not watch.wants_save(), "that checkpoint was before"
    saves(scene)
    clock.time += 10
    assert watch.wants_save()
    assert watch.wants_save(), "it stays so"


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_the_time_in_a_record_of_a_checkpoint_plays_no_part(scene, ahead):
    clock, size, run = scene
    saves(scene, ahead=3600.0)
    fails(size, (2, START), (2, START))
    watch = ScaleUpMonitor(size.may_grow, run, now=clock)
    clock.time += 10
    assert not watch.wants_save()
    saves(scene, ahead)
    clock.time += 10
    assert watch.wants_save()


def test_a_complete_worker_group_is_left_alone(scene):
    clock, size, run = scene
    watch = ScaleUpMonitor(size.may_grow, run, now=clock)
    clock.time += 1
    saves(scene)
    clock.time += 10
    assert not watch.wants_save()


def test_a_wait_is_kept(scene):
    clock, size, run = scene
    fails(size, (2, START), (2, START))
    size.grow()
    fails(size, (2, START), now=clock.time)
    watch = ScaleUpMonitor(size.may_grow, run, now=clock)
    clock.time += 59
    saves(scene)
    assert not watch.wants_save()
    clock.time += 5
    assert watch.wants_save()


@pytest.mark.parametrize(
    ("text", "workers"), [("3", (None, 3)), ("2:3", (2, 3)), (" 1:1 ", (1, 1))]
)
def test_how_many_workers_are_asked_for(text, workers):
    assert parse_workers(text) == workers


@pytest.mark.parametrize("text", ["many", "2:", ":2", "1:2:3", "-1", "2-3", ""])
def test_what_is_no_number_of_workers(text):
    with pytest.raises(ConfigurationError, match=r"--workers must be a number, or MIN:MAX"):
        parse_workers(text)


@pytest.mark.parametrize(
    ("requested", "says"),
    [
        ({"min_workers": 3, "workers": 2}, "MIN must be at least 1 and at most MAX"),
        ({"min_workers": 0, "workers": 2}, "MIN must be at least 1 and at most MAX"),
        ({"min_workers": 1, "workers": 2, "max_restarts": 0}, "give --max-restarts as well"),
        ({"min_workers": 1, "workers": 2, "strategy": "parameter-server"}, "give --workers one"),
    ],
)
def test_what_cannot_be_elastic(requested, says):
    with pytest.raises(ConfigurationError, match=says):
        RunOptions(**{"target": "train.py", "max_restarts": 1, **requested})
