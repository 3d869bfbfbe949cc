import signal
import time
from types import SimpleNamespace

import pytest

from phalanx.cluster.exit_codes import RESUME_EXIT_CODE
from phalanx.launcher.agent import Agent, AttemptResult, RestartState
from phalanx.launcher.elastic import ElasticMembership
from phalanx.launcher.failure import FailureRecord
from phalanx.launcher.restart_policy import RestartBudget, RestartPolicy
from phalanx.launcher.root_cause import WorkerExit, can_resume, root_cause
from phalanx.launcher.run_layout import AttemptPaths
from phalanx.launcher.run_result import resolve_result
from phalanx.launcher.supervisor import MonotonicClock, Supervisor, Timeouts

TERM, KILL = signal.SIGTERM, signal.SIGKILL


class FakeClock:
    def __init__(self):
        self.time = 0.0

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.time += seconds
        assert self.time < 1000, "the supervisor waits forever"


class FakeWorker:
    """Ends at a time of its own, or so many seconds after SIGTERM (None: it swallows it).

    `saves`: how many seconds after it is asked it ends with the code `saved`; while it can do so,
    it takes SIGTERM for that.
    """

    def __init__(self, clock, *, ends=None, code=0, heeds=0.0, saves=None, saved=RESUME_EXIT_CODE):
        self.clock, self.ends, self.code, self.heeds = clock, ends, code, heeds
        self.saves, self.saved = saves, saved
        self.pid = 1
        self.requested = []
        self.got = []

    def poll(self):
        if self.ends is not None and self.clock.time >= self.ends:
            return self.code
        return None

    def ask(self, number):
        self.requested.append((number, self.clock.time))
        if self.saves is not None:
            self.ends, self.code = self.clock.time + self.saves, self.saved
        else:
            self.signal(number)

    def signal(self, number):
        self.got.append((number, self.clock.time))
        if number == KILL:
            self.ends, self.code = self.clock.time, -KILL
        elif self.saves is not None:
            self.ask(number)
        elif self.heeds is not None:
            self.ends, self.code = self.clock.time + self.heeds, -number


class Scene:
    def __init__(self):
        self.clock = FakeClock()
        self.workers = {}
        self.failures = {}
        self.signals_at = []
        self.may_save = False
        self.timeouts = []
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
            may_save=lambda: self.may_save,
            on_poll=self.look,
            on_timeout=lambda: self.timeouts.append(self.clock.time),
            timeouts=Timeouts(
                poll_interval=0.1,
                failure_settle=2.0,
                self_exit=10.0,
                checkpoint=60.0,
                sigkill=3.0,
                sigkill_after_failure=0.5,
            ),
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
    assert endings[0].terminated_by_launcher
    assert endings[0].exit_code == -TERM
    assert scene.clock.time < 5.5


def test_who_swallows_sigterm_is_killed(scene):
    scene.worker(heeds=None)
    scene.worker(ends=5, code=1)
    endings = scene.run()
    assert endings[0].exit_code == -KILL
    (term, term_at), (kill, kill_at) = scene.workers[0].got
    assert (term, kill) == (TERM, KILL)
    assert kill_at - term_at == pytest.approx(0.5, abs=0.2)


def test_one_that_the_kernel_keeps_is_not_waited_for_for_ever(scene):
    scene.worker(heeds=None)
    scene.worker(ends=5, code=1)
    kept = scene.workers[0]
    kept.signal = lambda number: kept.got.append((number, scene.clock.time))
    first, second = scene.run()
    assert (first.unkillable_pid, second.unkillable_pid) == (kept.pid, None)
    assert [number for number, _ in kept.got] == [TERM, KILL]
    assert 60 < scene.clock.time < 70
    assert root_cause([first, second]) is second


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


@pytest.mark.parametrize(
    ("type", "reported"), [("DeadlineExceededError", 1), ("UnavailableError", 0)]
)
def test_a_collective_that_timed_out_is_reported_while_the_others_run(scene, type, reported):
    scene.worker(ends=5, code=1)
    scene.fails(0, at=4.9, type=type)
    scene.worker()
    scene.run()
    assert bool(scene.timeouts) == reported
    assert all(not worker.got or worker.got[0][1] > 5 for worker in scene.workers.values())
    assert not reported or scene.timeouts[0] < 5.5


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
    assert all(ending.terminated_by_launcher for ending in endings)
    assert root_cause(endings) is None
    assert 5 <= scene.clock.time < 5.5


def test_after_a_signal_there_is_some_time_to_clean_up(scene):
    scene.worker(heeds=None)
    scene.signals_at = [4.0]
    assert scene.run()[0].exit_code == -KILL
    assert 7 <= scene.clock.time < 7.5


def asked_to_save(scene, *, at=4.0):
    scene.signals_at, scene.may_save = [at], True


def test_a_request_to_save_is_passed_on_once_and_waited_for(scene):
    scene.worker(saves=30.0)
    scene.worker(saves=31.0)
    asked_to_save(scene)
    endings = scene.run()
    assert [ending.exit_code for ending in endings] == [RESUME_EXIT_CODE] * 2
    assert can_resume(endings)
    for worker in scene.workers.values():
        assert [number for number, _ in worker.requested] == [TERM]
        assert worker.got == []
    assert 35 <= scene.clock.time < 35.5


def test_who_saves_for_too_long_is_ended(scene, tmp_path):
    scene.worker(saves=100.0)
    asked_to_save(scene)
    endings = scene.run()
    assert endings[0].exit_code == -KILL
    assert not can_resume(endings)
    assert 64 <= scene.clock.time < 65
    paths = AttemptPaths(run=tmp_path, attempt=0)
    result = resolve_result(endings, hang=None, signal=None, paths=paths)
    assert result.exit_code == 1  # It was asked so that the worker group could grow.
    assert "--grace-period" in result.report


def test_a_second_signal_cuts_saving_short(scene):
    scene.worker(saves=30.0)
    asked_to_save(scene)
    scene.signals_at.append(6.0)
    assert scene.run()[0].exit_code == -KILL
    assert 6 <= scene.clock.time < 7


def test_one_that_cannot_save_keeps_no_one_waiting(scene):
    scene.worker(saves=30.0)
    scene.worker(heeds=0.0)  # It does not train: SIGTERM ends it.
    asked_to_save(scene)
    endings = scene.run()
    assert root_cause(endings) is None
    assert not can_resume(endings)
    assert scene.clock.time < 5.5


def test_a_failure_while_saving_is_the_cause(scene):
    scene.worker(saves=30.0)
    scene.worker(heeds=3.0)
    scene.fails(1, at=6.0, type="OSError")
    asked_to_save(scene)
    endings = scene.run()
    assert root_cause(endings).rank == 1
    assert not can_resume(endings)


def test_workers_that_save_on_their_own_have_not_failed(scene):
    scene.worker(ends=5, code=RESUME_EXIT_CODE)
    scene.worker(ends=7, code=RESUME_EXIT_CODE)
    endings = scene.run()
    assert root_cause(endings) is None
    assert can_resume(endings)
    assert [worker.got for worker in scene.workers.values()] == [[], []]


def test_one_that_saved_does_not_wait_for_ever_for_the_others(scene):
    scene.worker(ends=5, code=RESUME_EXIT_CODE)
    scene.worker(heeds=None)
    endings = scene.run()
    assert can_resume(endings)
    assert 65 <= scene.clock.time < 66


def test_one_that_ends_well_while_others_save_is_in_order(scene):
    scene.worker(saves=0.5, saved=0)
    scene.worker(saves=2.0)
    asked_to_save(scene)
    assert can_resume(scene.run())


def test_a_failure_ends_those_that_would_rather_save(scene):
    scene.worker(saves=30.0)
    scene.worker(ends=5, code=-KILL)
    endings = scene.run()
    assert endings[0].exit_code == -KILL
    assert scene.clock.time < 6


def test_a_second_signal_is_impatient(scene):
    scene.worker(heeds=None)
    scene.signals_at = [4.0, 5.0]
    assert scene.run()[0].exit_code == -KILL
    assert 5 <= scene.clock.time < 5.5


def test_an_accident_in_the_launcher_leaves_no_one(scene):
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


class Stopped:
    """A monotonic clock of a process that may be stopped."""

    def __init__(self):
        self.time = 100.0

    def clock(self, **options):
        return MonotonicClock(read=lambda: self.time, sleep=self.sleep, **options)

    def sleep(self, seconds):
        self.time += seconds


def test_the_supervisors_clock_counts_no_time_in_which_it_was_stopped():
    machine = Stopped()
    clock = machine.clock(longest_gap=5.0)
    began = clock.now()
    machine.time += 3.0
    assert clock.now() - began == 3.0
    machine.time += 3600.0
    assert clock.now() - began == 8.0
    clock.sleep(100.0)
    assert clock.now() - began == 108.0


def test_the_supervisors_clock_does_not_follow_the_wall_clock(monkeypatch):
    clock = MonotonicClock()
    began = clock.now()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 0 <= clock.now() - began < 5


def test_a_failure_counts_from_when_the_launcher_first_saw_it(scene):
    # It writes down its failure at 5 s and ends at 8 s; the other dies at 7 s.
    scene.worker(ends=8.0, code=1)
    scene.worker(ends=7.0, code=-KILL)
    scene.fails(0, at=5.0)
    endings = scene.run()
    assert endings[0].at == pytest.approx(5.0, abs=0.1)
    assert root_cause(endings).rank == 0


def test_a_run_with_a_process_that_the_kernel_keeps_is_not_restarted(tmp_path):
    runner = SimpleNamespace(
        options=SimpleNamespace(max_restarts=3, name=None),
        plan=SimpleNamespace(paths=lambda attempt: AttemptPaths(run=tmp_path, attempt=attempt)),
        signals=SimpleNamespace(count=lambda: 0, first=None),
        timeouts=Timeouts(),
    )
    endings = [
        WorkerExit(
            rank=0, exit_code=-KILL, at=70.0, terminated_by_launcher=True, unkillable_pid=17
        ),
        WorkerExit(rank=1, exit_code=5, at=5.0),
    ]
    ran = AttemptResult(endings=endings, hang=None, seen=None, to_grow=False, seconds=70.0)
    state = RestartState(
        restarts=RestartBudget(RestartPolicy(most=3)), size=ElasticMembership(least=2, most=2)
    )
    result = Agent(runner=runner)._judge(0, ran, state)
    assert result.exit_code == 5
    assert "worker 0 (process 17)" in result.report
