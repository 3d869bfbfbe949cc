import signal

import pytest

from phalanx.launch.failure import FailureRecord
from phalanx.launch.rootcause import root_cause
from phalanx.launch.supervise import Patience, Supervisor

TERM, KILL = signal.SIGTERM, signal.SIGKILL


class FakeClock:
    def __init__(self):
        self.time = 0.0

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.time += seconds
        assert self.time < 1000, "the supervisor waits for ever"


class FakeWorker:
    """Ends at a time of its own, or so many seconds after SIGTERM (None: it swallows it)."""

    def __init__(self, clock, *, ends=None, code=0, heeds=0.0):
        self.clock, self.ends, self.code, self.heeds = clock, ends, code, heeds
        self.pid = 1
        self.got = []

    def poll(self):
        if self.ends is not None and self.clock.time >= self.ends:
            return self.code
        return None

    def signal(self, number):
        self.got.append((number, self.clock.time))
        if number == KILL:
            self.ends, self.code = self.clock.time, -KILL
        elif self.heeds is not None:
            self.ends, self.code = self.clock.time + self.heeds, -number


class Scene:
    def __init__(self):
        self.clock = FakeClock()
        self.workers = {}
        self.failures = {}
        self.signals_at = []
        self.looks = 0

    def worker(self, **how):
        self.workers[len(self.workers)] = FakeWorker(self.clock, **how)

    def fails(self, rank, *, at, type="ValueError", exit_code=1):
        self.failures[rank] = FailureRecord(
            rank=rank, type=type, message="", traceback="", time=at, exit_code=exit_code
        )

    def failure_of(self, rank):
        record = self.failures.get(rank)
        return record if record is not None and record.time <= self.clock.time else None

    def look(self):
        self.looks += 1

    def run(self):
        endings = Supervisor(
            handles=self.workers,
            failure_of=self.failure_of,
            clock=self.clock,
            interrupted=lambda: sum(at <= self.clock.time for at in self.signals_at),
            on_poll=self.look,
            patience=Patience(poll=0.1, settle=2.0, leave=10.0, grace=3.0),
        ).run()
        assert [ending.rank for ending in endings] == list(self.workers)
        return endings


@pytest.fixture
def scene():
    return Scene()


def test_all_end_well(scene):
    scene.worker(ends=5)
    scene.worker(ends=50)
    endings = scene.run()
    assert root_cause(endings) is None
    assert [worker.got for worker in scene.workers.values()] == [[], []]
    assert scene.looks > 10


def test_one_failure_ends_the_others(scene):
    scene.worker()
    scene.worker(ends=5, code=1)
    endings = scene.run()
    assert root_cause(endings).rank == 1
    assert endings[0].stopped
    assert endings[0].exit_code == -TERM
    assert scene.clock.time < 5.5


def test_who_swallows_sigterm_is_killed(scene):
    scene.worker(heeds=None)
    scene.worker(ends=5, code=1)
    endings = scene.run()
    assert endings[0].exit_code == -KILL
    (term, term_at), (kill, kill_at) = scene.workers[0].got
    assert (term, kill) == (TERM, KILL)
    assert kill_at - term_at == pytest.approx(3, abs=0.2)


def test_a_victims_failure_waits_for_its_cause(scene):
    scene.worker(ends=5, code=1)
    scene.fails(0, at=4.9, type="UnavailableError")
    scene.worker(ends=6, code=1)
    scene.fails(1, at=5.9)
    endings = scene.run()
    assert root_cause(endings).rank == 1
    assert scene.workers[1].got == []


def test_a_victim_without_a_cause_is_not_waited_for_long(scene):
    scene.worker(ends=5, code=1)
    scene.fails(0, at=4.9, type="UnavailableError")
    scene.worker()
    assert root_cause(scene.run()).rank == 0
    assert 7 <= scene.clock.time < 7.5


def test_all_are_victims(scene):
    for rank in range(2):
        scene.worker(ends=5, code=1)
        scene.fails(rank, at=4.0 + rank / 2, type="UnavailableError")
    assert root_cause(scene.run()).rank == 0


def test_a_failed_worker_that_does_not_end_is_ended(scene):
    scene.worker(heeds=None)
    scene.fails(0, at=5, exit_code=3)
    scene.worker()
    cause = root_cause(scene.run())
    assert (cause.rank, cause.shell_code) == (0, 3)
    assert 15 <= scene.clock.time < 19


def test_a_signal_to_the_launcher_ends_all(scene):
    scene.worker(heeds=1.0)
    scene.worker(heeds=1.0)
    scene.signals_at = [4.0]
    endings = scene.run()
    assert all(ending.stopped for ending in endings)
    assert root_cause(endings) is None
    assert 5 <= scene.clock.time < 5.5


def test_a_second_signal_is_impatient(scene):
    scene.worker(heeds=None)
    scene.signals_at = [4.0, 5.0]
    assert scene.run()[0].exit_code == -KILL
    assert 5 <= scene.clock.time < 5.5


def test_an_accident_in_the_launcher_leaves_nobody(scene):
    scene.worker()
    scene.worker()

    def look():
        if scene.clock.time > 2:
            scene.look = lambda: None
            raise BrokenPipeError

    scene.look = look
    supervisor = Supervisor(
        handles=scene.workers,
        failure_of=scene.failure_of,
        clock=scene.clock,
        on_poll=lambda: scene.look(),
    )
    with pytest.raises(BrokenPipeError):
        supervisor.run()
    assert [worker.code for worker in scene.workers.values()] == [-KILL, -KILL]
