"""Processes that serve a chief: replaced where they can be, ended when the chief has ended."""

import signal
from dataclasses import replace

import pytest
from test_cluster_task_types import spec
from test_launcher_supervisor import FakeClock, FakeWorker

from phalanx.launcher.failure import FailureRecord
from phalanx.launcher.process import WorkerHandle
from phalanx.launcher.ps_tasks import MOST_REPLACEMENTS, Replacements, add_chief_and_ps
from phalanx.launcher.resources import ResourceAllocation
from phalanx.launcher.restart_policy import GiveUp, RestartBudget, RestartPolicy
from phalanx.launcher.root_cause import WorkerExit, root_cause
from phalanx.launcher.supervisor import Supervisor


def test_a_worker_group_has_a_chief_workers_and_servers():
    workers = [ResourceAllocation(devices=None, threads=2, gpus=("0",))]
    chief, worker, *servers = add_chief_and_ps(workers, 2)
    assert worker == workers[0]
    assert [s.devices.kind for s in (chief, *servers)] == ["cpu"] * 3


class Replaced:
    def __init__(self, servers=2):
        self.reported = []
        self.started = []
        self.replace = Replacements(
            [spec(rank, servers) for rank in range(6)],
            start=self.start,
            on_replaced=lambda ending, handle: self.reported.append(ending.rank),
        )

    def start(self, spec) -> WorkerHandle:
        self.started.append(spec.rank)
        return object()


def killed(rank):
    return WorkerExit(rank=rank, exit_code=-9, at=0.0)


@pytest.mark.parametrize("rank", [0, 4, 5])
def test_chief_and_servers_are_not_replaced(rank):
    worker_group = Replaced()
    assert worker_group.replace(killed(rank)) is None
    assert worker_group.started == []


def test_no_one_is_replaced_who_trains_in_step():
    assert Replaced(servers=0).replace(killed(1)) is None


def test_workers_are_replaced_so_many_times():
    worker_group = Replaced()
    for _ in range(MOST_REPLACEMENTS):
        assert worker_group.replace(killed(2)) is not None
    assert worker_group.replace(killed(1)) is None
    assert worker_group.started == worker_group.reported == [2] * MOST_REPLACEMENTS


class Independent(Replaced):
    """Workers that exchange nothing, and what `--max-restarts` gives them."""

    def __init__(self, max_restarts):
        super().__init__()
        self.now = 0.0
        self.restarts = RestartBudget(RestartPolicy(most=max_restarts, refill_after=100.0))
        self.replace = Replacements(
            [replace(spec(rank, servers=0), independent=True, addresses=()) for rank in range(6)],
            start=self.start,
            on_replaced=lambda ending, handle: self.reported.append(ending.rank),
            restarts=self.restarts,
            now=lambda: self.now,
        )


def test_independent_workers_are_replaced_as_often_as_restarts_are_left():
    worker_group = Independent(max_restarts=2)
    assert worker_group.replace(killed(0)) is not None
    assert worker_group.replace(killed(3)) is not None
    assert worker_group.replace(killed(1)) is None
    assert worker_group.started == worker_group.reported == [0, 3]
    assert isinstance(worker_group.restarts.after(killed(1), lasted=0.0), GiveUp)


def test_a_worker_that_has_lasted_refills_the_restarts_and_its_replacement_does_not():
    worker_group = Independent(max_restarts=1)
    worker_group.now = 150.0
    assert worker_group.replace(killed(0)) is not None
    worker_group.now = 200.0
    assert worker_group.replace(killed(0)) is None
    worker_group.now = 400.0
    assert worker_group.replace(killed(0)) is not None


def test_independent_workers_are_not_replaced_without_restarts_or_for_a_bug():
    assert Independent(max_restarts=0).replace(killed(0)) is None
    worker_group = Independent(max_restarts=5)
    failure = FailureRecord(
        rank=0, type="ValueError", message="bad row", traceback="", time=0.0, exit_code=1
    )
    failed = WorkerExit(rank=0, exit_code=1, at=0.0, failure=failure)
    assert worker_group.replace(failed) is not None
    assert worker_group.replace(failed) is None


def supervised(*workers, ps_tasks, replacement=lambda ending: None):
    clock = FakeClock()
    worker_group = {rank: FakeWorker(clock, **how) for rank, how in enumerate(workers)}
    successor = FakeWorker(clock)
    endings = Supervisor(
        handles=worker_group,
        failure_of=lambda rank: None,
        clock=clock,
        ps_tasks=frozenset(ps_tasks),
        replacement=lambda ending: replacement(ending, successor),
    ).run()
    return endings, clock, worker_group


def no_one(ending, successor):
    return None


def test_ps_tasks_are_ended_when_the_chief_has_ended():
    endings, clock, _ = supervised({"ends": 5}, {}, {}, ps_tasks=[1, 2], replacement=no_one)
    assert root_cause(endings) is None
    assert [ending.terminated_by_launcher for ending in endings] == [False, True, True]
    assert clock.time < 6


def test_a_ps_task_that_cannot_be_replaced_ends_the_run():
    chief, server = {}, {"ends": 5, "code": -signal.SIGKILL}
    endings, clock, _ = supervised(chief, server, ps_tasks=[1], replacement=no_one)
    assert root_cause(endings).rank == 1
    assert endings[0].terminated_by_launcher
    assert clock.time < 6


def test_the_rest_continues_while_one_is_replaced():
    worker = {"ends": 5, "code": -signal.SIGKILL}
    endings, clock, worker_group = supervised(
        {"ends": 20}, worker, ps_tasks=[1], replacement=lambda ending, successor: successor
    )
    assert root_cause(endings) is None
    assert clock.time == pytest.approx(20, abs=1)
    assert worker_group[1].got  # its successor was ended with the chief
    assert worker_group[0].got == []
