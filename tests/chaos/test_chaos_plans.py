"""Plans of faults as values: read, written, drawn, refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import ConfigurationError
from phalanx.testing import chaos
from phalanx.testing.chaos.injector import Injector, Marks, peer_ports, rank_here

KINDS = (
    chaos.Kill, chaos.Exit, chaos.Freeze, chaos.SlowDown, chaos.Raise, chaos.DropNetwork,
    chaos.FailWrites, chaos.SlowWrites, chaos.VanishingDirectory,
)  # fmt: skip


@given(seed=st.integers(0, 2**32), workers=st.integers(1, 5), steps=st.integers(1, 90))
def test_a_drawn_plan_is_drawn_again_and_read_back(seed, workers, steps):
    requested = {"workers": workers, "steps": steps, "kinds": KINDS, "faults": 6}
    plan = chaos.random_plan(seed, **requested)
    assert plan == chaos.random_plan(seed, **requested)
    assert chaos.parse_plan(chaos.show_plan(plan)) == plan
    assert len(plan) == 6
    for fault in plan:
        assert fault.worker in range(workers)
        assert getattr(fault, "step", 1) in range(1, steps + 1)


def test_a_drawn_plan_stays_what_it_was():
    """Seeds are written down where something failed, so they must mean the same forever."""
    plan = chaos.random_plan(7, workers=3, steps=40)
    assert chaos.show_plan(plan) == DRAWN


DRAWN = (
    "Freeze(worker=0, step=26, seconds=2.13); Kill(worker=2, step=7); "
    "Freeze(worker=2, step=4, seconds=2.77)"
)


def test_other_seeds_draw_other_plans():
    assert len({chaos.random_plan(seed, workers=3, steps=40) for seed in range(20)}) > 15


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("", ()),
        ("Kill(worker=1, step=7)", (chaos.Kill(worker=1, step=7),)),
        (
            " Freeze(worker=0, step=2); FailWrites(nth=3, times=None, error='EROFS') ;",
            (chaos.Freeze(worker=0, step=2), chaos.FailWrites(nth=3, times=None, error="EROFS")),
        ),
        (
            "random_plan(5, workers=2, steps=9, kinds=(Exit, SlowDown)); Kill(worker=0, step=1)",
            (
                *chaos.random_plan(5, workers=2, steps=9, kinds=(chaos.Exit, chaos.SlowDown)),
                chaos.Kill(worker=0, step=1),
            ),
        ),
    ],
)
def test_a_plan_is_read(text, plan):
    assert chaos.parse_plan(text) == plan


@pytest.mark.parametrize(
    "text",
    [
        "Kill",
        "Kill(1, 7)",
        "Kill(worker=1)",
        "Kill(worker=1, step=7",
        "Kill(worker=1, step=open('x'))",
        "print(1)",
        "os.kill(1, 9)",
        "Kill(worker=1, step=Kil)",
    ],
)
def test_what_is_no_plan_is_refused_and_not_executed(text):
    with pytest.raises(ConfigurationError, match="Cannot read"):
        chaos.parse_plan(text)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: chaos.Kill(worker=-1, step=1), "at least 0 for worker; found -1"),
        (lambda: chaos.Kill(worker=0, step=0), "at least 1 for step; found 0"),
        (lambda: chaos.Exit(worker=0, step=1, code=-3), "code"),
        (lambda: chaos.Freeze(worker=0, step=1, seconds=-1.0), "seconds"),
        (lambda: chaos.SlowDown(worker=0, step=1, seconds="a"), "found 'a'"),
        (lambda: chaos.SlowDown(worker=0, step=1, seconds=1, steps=0), "steps"),
        (lambda: chaos.Raise(worker=0, step=1, error="NoSuchError"), "built-in exception"),
        (lambda: chaos.FailWrites(error="NOSPACE"), "found error='NOSPACE'"),
        (lambda: chaos.FailWrites(nth=0), "nth"),
        (lambda: chaos.SlowWrites(seconds=-0.1), "seconds"),
        (lambda: chaos.VanishingDirectory(times=0), "times"),
        (lambda: chaos.random_plan(1, workers=0, steps=1), "workers=0"),
        (lambda: chaos.random_plan(1, workers=1, steps=1, kinds=()), "0 kinds"),
        (lambda: chaos.parse_plan("Kill(worker=0, step=0)"), "for step"),
    ],
)
def test_what_cannot_happen_is_refused(make, says):
    with pytest.raises(ConfigurationError, match=says):
        make()


def test_the_words_for_the_command_line():
    words = chaos.command([chaos.Kill(worker=1, step=7)], "train.py", "--epochs", "2")
    assert words == ("-m", "phalanx.testing.chaos", "Kill(worker=1, step=7)", "train.py",
                     "--epochs", "2")  # fmt: skip


class Follower:
    """An injector whose faults are written down."""

    def __init__(self, plan, marks, rank=0):
        self.done, self.slept = [], []
        self.injector = Injector(
            plan, rank, marks, do=lambda fault, _: self.done.append(fault), sleep=self.slept.append
        )

    def go(self, *steps):
        for step in steps:
            self.injector.reached(step)
        return self


KILL, EVERY = (
    chaos.Kill(worker=0, step=3),
    chaos.Kill(worker=0, step=5, every_attempt=True),
)


@pytest.fixture(params=["directory", "memory"])
def marks(request, tmp_path):
    """Makes the marks of another process of the same run, or of this one again."""
    if request.param == "directory":
        return lambda: Marks(tmp_path / "chaos")
    kept = Marks(None)
    return lambda: kept


def test_a_fault_happens_at_its_step_once_in_a_run(marks):
    plan = (KILL, chaos.Kill(worker=1, step=2), EVERY)
    assert Follower(plan, marks()).go(0, 1, 2).done == []
    assert Follower(plan, marks()).go(0, 1, 2, 3).done == [KILL]
    assert Follower(plan, marks()).go(2, 3, 4, 5).done == [EVERY]
    assert Follower(plan, marks()).go(2, 3, 4, 5, 6).done == [EVERY]


def test_steps_done_together_hold_what_is_between(marks):
    assert Follower((KILL, EVERY), marks()).go(0, 8).done == [KILL, EVERY]


def test_what_lies_before_the_beginning_is_passed_over(marks):
    assert Follower((KILL, EVERY), marks()).go(4, 5).done == [EVERY]


def test_a_training_that_restarts_is_another(marks):
    assert Follower((KILL, EVERY), marks()).go(0, 2, 0, 1, 3).done == [KILL]


def test_a_worker_is_slow_for_as_many_steps(marks):
    plan = (chaos.SlowDown(worker=0, step=3, seconds=0.5, steps=3),)
    assert Follower(plan, marks()).go(0, *range(1, 10)).slept == [0.5] * 3
    assert Follower(plan, marks()).go(0, *range(1, 10)).slept == []


def test_a_worker_is_as_slow_where_steps_run_together(tmp_path):
    plan = (chaos.SlowDown(worker=0, step=3, seconds=0.5, steps=3, every_attempt=True),)
    assert sum(Follower(plan, Marks(None)).go(0, 4, 8).slept) == 1.5


def test_who_and_where_a_process_is():
    config = '{"cluster": {"worker": ["a:1", "b:22"]}, "task": {"type": "worker", "index": 1}}'
    assert rank_here({"TF_CONFIG": config}) == 1
    assert peer_ports({"TF_CONFIG": config}) == {1, 22}
    assert rank_here({}) == 0
    assert peer_ports({}) == frozenset()
