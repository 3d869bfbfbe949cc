"""Which steps are sampled, by a clock that the test sets."""

import itertools

from phalanx.training.overhead_budget import OverheadBudget


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def looked_at(sampling, clock, *, steps, plain=1.0, look=1.0, tracing=(), chief=None):
    """Run `steps` steps of so many seconds; returns those that were looked at."""
    looks = []
    for step in range(1, steps + 1):
        if not sampling.is_due(step):
            clock.now += plain
            continue
        started, traced = clock(), len(looks) in tracing
        clock.now += look + (1000.0 if traced else 0.0)
        interval = sampling.proposal if chief is None else chief
        sampling.record(step, started, interval, traced=traced)
        looks.append(step)
    return looks


def made(every=10, max_overhead=None):
    clock = Clock()
    return OverheadBudget(every=every, max_overhead=max_overhead, clock=clock), clock


def test_the_first_step_and_every_nth_from_there():
    sampling, clock = made(every=10)
    assert looked_at(sampling, clock, steps=35, tracing=[0]) == [1, 11, 21, 31]


def test_every_step_when_asked():
    sampling, clock = made(every=1)
    assert looked_at(sampling, clock, steps=5, look=50.0) == [1, 2, 3, 4, 5]


def test_it_says_how_many_steps_until_the_next_look():
    sampling, clock = made(every=4)
    assert sampling.steps_until(0) == 1
    looked_at(sampling, clock, steps=1)
    assert [sampling.steps_until(trained) for trained in (1, 2, 4, 9)] == [4, 3, 1, 1]
    assert not sampling.is_due(4)
    assert sampling.is_due(5)


def test_costly_looks_grow_rare_enough_to_stay_under_the_overhead():
    sampling, clock = made(every=10, max_overhead=0.02)
    looks = looked_at(sampling, clock, steps=4000, plain=1.0, look=11.0, tracing=[0])
    gaps = [b - a for a, b in itertools.pairwise(looks)]
    assert gaps[:2] == [10, 10]  # the second sampled step measures, the third broadcasts it
    assert set(gaps[2:]) == {500}
    assert 10.0 / 500 <= 0.02  # a look takes ten plain steps more than a plain step


def test_cheap_looks_keep_the_interval_that_was_asked_for():
    sampling, clock = made(every=10, max_overhead=0.02)
    looks = looked_at(sampling, clock, steps=100, plain=1.0, look=1.1, tracing=[0])
    assert looks == list(range(1, 101, 10))


def test_it_comes_back_when_looks_get_cheap_again():
    sampling, clock = made(every=10, max_overhead=0.5)
    looked_at(sampling, clock, steps=200, plain=1.0, look=101.0, tracing=[0])
    assert sampling.proposal == 200.0
    for step in range(201, 1000):
        if sampling.is_due(step):
            started = clock()
            clock.now += 1.0
            sampling.record(step, started, sampling.proposal)
        else:
            clock.now += 1.0
    assert sampling.proposal == 10.0


def test_tracing_does_not_count_whenever_it_happens():
    sampling, clock = made(every=10, max_overhead=0.02)
    looks = looked_at(sampling, clock, steps=100, look=1.0, tracing=[0, 1, 4])
    assert looks == list(range(1, 101, 10))


def test_what_the_chief_proposed_holds():
    sampling, clock = made(every=10, max_overhead=0.02)
    looks = looked_at(sampling, clock, steps=100, look=500.0, chief=25.0)
    assert looks == [1, 26, 51, 76]


def test_a_bound_on_the_cost_leaves_steps_between_looks_to_measure_by():
    sampling, clock = made(every=1, max_overhead=0.5)
    assert looked_at(sampling, clock, steps=6, tracing=[0]) == [1, 3, 5]
    sampling, clock = made(every=1, max_overhead=0.5)
    looks = looked_at(sampling, clock, steps=31, plain=1.0, look=6.0, tracing=[0])
    assert looks == [1, 3, 5, 15, 25]
