"""When a failed worker group is restarted: tables, no processes."""

import pytest

from phalanx.launcher.failure import FailureRecord
from phalanx.launcher.restart_policy import GiveUp, RestartBudget, RestartDecision, RestartPolicy
from phalanx.launcher.root_cause import WorkerExit


def killed(rank=0):
    return WorkerExit(rank=rank, exit_code=-9, at=1.0)


def raised(message="bad", type="ValueError", step=None, rank=0):
    failure = FailureRecord(
        rank=rank, type=type, message=message, traceback="", time=1.0, step=step
    )
    return WorkerExit(rank=rank, exit_code=1, at=1.0, failure=failure)


def restarts(**policy):
    return RestartBudget(RestartPolicy(**{"most": 3, **policy}))


def test_none_is_asked_for():
    assert restarts(most=0).after(killed(), lasted=5.0) == GiveUp()


def test_waits_double_up_to_the_longest():
    budget = restarts(most=5, first=1.0, longest=5.0)
    waits = [budget.after(killed(), lasted=5.0).seconds for _ in range(5)]
    assert waits == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_the_budget_ends():
    budget = restarts(most=2)
    assert [budget.after(killed(), lasted=5.0).number for _ in range(2)] == [1, 2]
    last = budget.after(killed(), lasted=5.0)
    assert isinstance(last, GiveUp)
    assert "restarted 2 times" in last.why


def test_a_time_of_health_fills_the_budget_again():
    budget = restarts(most=1, refill_after=600.0)
    assert budget.after(killed(), lasted=5.0) == RestartDecision(seconds=1.0, number=1)
    assert budget.after(killed(), lasted=600.0) == RestartDecision(seconds=1.0, number=1)
    assert isinstance(budget.after(killed(), lasted=599.0), GiveUp)


@pytest.mark.parametrize("step", [None, 412])
def test_the_same_exception_at_the_same_step_is_a_bug(step):
    budget = restarts()
    assert isinstance(budget.after(raised(step=step, rank=0), lasted=5.0), RestartDecision)
    verdict = budget.after(raised(step=step, rank=1), lasted=5.0)
    assert isinstance(verdict, GiveUp)
    assert "a bug" in verdict.why
    assert ("at step 412" in verdict.why) == (step == 412)


@pytest.mark.parametrize(
    "other",
    [
        raised(step=11),
        raised("worse", step=10),
        raised(type="OSError", step=10),
        killed(),
        raised("Connection reset by peer", type="UnavailableError", step=10),
        None,
    ],
)
def test_anything_else_may_be_a_fault(other):
    budget = restarts(most=9)
    assert isinstance(budget.after(raised(step=10), lasted=5.0), RestartDecision)
    assert isinstance(budget.after(other, lasted=5.0), RestartDecision)
    assert isinstance(budget.after(other, lasted=5.0), RestartDecision) == (
        other is None or other.failure is None or other.is_secondary
    )


def test_a_kill_between_two_equal_exceptions_reports_nothing_of_them():
    budget = restarts(most=9)
    for cause in (raised(step=10), killed(), raised(step=10)):
        assert isinstance(budget.after(cause, lasted=5.0), RestartDecision)
