"""Steps are timed and numbers closed at the same steps on all workers; what a fit records."""

import pytest
from tests.unit.event_list import EventList

from phalanx.distributed.topology import ReplicaTopology
from phalanx.monitoring.events import EpochMetrics, FitEnd
from phalanx.monitoring.phase_tracker import PhaseTracker
from phalanx.monitoring.throughput import WARM_UP, StepSplit, ThroughputNumbers
from phalanx.monitoring.training_events import TrainingEvents
from phalanx.training.context import CallContext
from phalanx.training.instrumentation import StepTimer


class FakeTimedSteps:
    last = StepSplit(input=0.001, busy=0.008, communication=0.001, batch=8)

    def __init__(self):
        self.requested = []
        self.traced = False

    def run(self, iterator, *, communication):
        self.traced = communication and True not in self.requested
        self.requested.append(communication)


class Listener:
    wants_workers = False

    def __init__(self, every_n_seconds):
        self.every_n_seconds = every_n_seconds


class Worker:
    """One worker's keeper, by a clock of its own that runs at its own speed."""

    def __init__(self, speed=1.0, every=None, recorded=False, first=0.0):
        self.now, self.speed, self.first = 0.0, speed, first
        self.timed = FakeTimedSteps()
        self.keeper = StepTimer(
            CallContext(model=None, strategy=None, topology=ReplicaTopology(), exit=None),
            self.timed,
            listeners=[Listener(every)] if every else [],
            is_recorded=recorded,
            clock=lambda: self.now,
            phases=PhaseTracker(clock=lambda: self.now).totals,
        )
        self.split_at, self.closed = [], []

    def execute(self, step, steps, seconds):
        if (timed := self.keeper.last_step(steps)) is not None:
            timed(None)
            self.split_at.append(step)
        self.now += seconds * self.speed + (self.first if step == steps else 0.0)
        self.keeper.executed(steps)

    def end(self, step, steps):
        self.keeper.end_lap(steps, None)
        if (numbers := self.keeper.close_if_due(step)) is not None:
            self.closed.append((step, numbers.steps))


def train(workers, steps, seconds=0.01, chunk=1):
    """All workers step by step; readings carry what the first of them proposes."""
    readings = []
    chief = workers[0]
    for step in range(chunk, steps + 1, chunk):
        for worker in workers:
            worker.execute(step, chunk, seconds)
        needs = {worker.keeper.needs_reading for worker in workers}
        assert len(needs) == 1, "a reading is a collective"
        if needs == {True}:
            readings.append(step)
            notes = chief.keeper.propose()
            for worker in workers:
                worker.keeper.agree(*notes)
        for worker in workers:
            worker.end(step, chunk)
    return readings


@pytest.mark.parametrize("chunk", [1, 4])
def test_all_time_and_close_at_the_same_steps_whatever_their_clocks(chunk):
    workers = [Worker(speed, every=1.0) for speed in (1.0, 0.1, 7.0)]
    train(workers, 800, chunk=chunk)
    chief = workers[0]
    assert chief.split_at
    assert chief.closed
    for worker in workers[1:]:
        assert (worker.split_at, worker.closed) == (chief.split_at, chief.closed)


def test_about_ten_steps_in_a_window_are_timed():
    worker = Worker(every=2.0)
    train([worker], 1000)
    assert 40 <= len(worker.split_at) <= 50
    assert 4 <= len(worker.closed) <= 5
    assert worker.split_at[0] > WARM_UP


def test_readings_are_asked_for_where_steps_were_timed_only():
    worker = Worker(every=10.0)
    readings = train([worker], 1000)
    assert set(readings[1:]) == set(worker.split_at)


def test_where_no_one_wants_it_nothing_is_timed_or_read():
    worker = Worker()
    assert train([worker], 500) == []
    assert worker.split_at == worker.closed == []
    assert worker.keeper.close(500) is None, "and nothing is kept meanwhile"


def test_a_callback_has_communication_measured_at_once():
    worker = Worker(every=10.0)
    train([worker], 300)
    assert set(worker.timed.requested) == {True}


def test_recording_alone_waits_until_tracing_is_little():
    worker = Worker(recorded=True, first=0.2)  # tracing took some 0.2 s: 100 times that is 20 s
    train([worker], 1900)
    assert set(worker.timed.requested) == {False}
    train([worker], 500)
    assert worker.timed.requested[-1] is True


def test_what_tracing_takes_is_in_no_window():
    worker = Worker(every=0.5)
    train([worker], 60)
    traced = worker.split_at[0]
    step, steps = worker.closed[0]
    assert steps == step - traced


class Model:
    name, built, optimizer = "model", False, None


def recorder(events, *, is_chief=True):
    clock = lambda: clock.now  # noqa: E731
    clock.now = 10.0
    return clock, TrainingEvents(events, fit=2, is_chief=is_chief, clock=clock)


def test_steps_are_recorded_about_once_a_second_at_most():
    events = EventList()
    clock, writes = recorder(events)
    requested = []

    def rate():
        requested.append(clock.now)
        return 0.1

    for _ in range(100):
        writes.metrics({"loss": 1.0}, rate, step=1, epoch=0, batch=0)
        clock.now += 0.1
    assert 10 <= len(events) <= 12
    assert len(requested) == len(events), "the rate is read for what is written only"


def test_only_the_chief_writes_what_is_the_same_on_all():
    events = EventList()
    _, writes = recorder(events, is_chief=False)
    writes.start(Model(), step=0, epochs=1, initial_epoch=0, steps=None)
    writes.epoch_begins()
    writes.metrics({}, lambda: None, step=1, epoch=0, batch=0)
    writes.throughput(
        ThroughputNumbers(
            step=1,
            steps=1,
            seconds=1.0,
            samples=None,
            samples_per_second=None,
            step_seconds={},
            time_fractions={},
            memory_bytes=1,
        )
    )
    writes.epoch({}, None, step=1, epoch=0)
    writes.stop("done", step=1, epoch=0)
    writes.end(step=1, epoch=0)
    kinds = [event.KIND for event in events if event.KIND != "heartbeat"]
    assert kinds == ["fit_start", "throughput", "fit_end"]
    assert (events[0].fit, events[0].epochs, events[0].model) == (2, 1, "model")


def test_seconds_of_epochs_and_of_the_fit():
    events = EventList()
    clock, writes = recorder(events)
    clock.now += 1
    writes.epoch_begins()
    clock.now += 2
    writes.epoch({"loss": 1.0}, 0.5, step=9, epoch=3)
    clock.now += 4
    writes.end(step=9, epoch=3)
    epoch, end = (event for event in events if event.KIND != "heartbeat")
    assert epoch == EpochMetrics(
        step=9, epoch=3, logs={"loss": 1.0}, learning_rate=0.5, seconds=2.0
    )
    assert end == FitEnd(fit=2, step=9, epoch=3, seconds=7.0)
