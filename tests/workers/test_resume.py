"""A training that was broken off and restarted ends as one that never was."""

import itertools
import os

import numpy as np
import pytest
import resume_cases

EVERY = 2
BREAK_AT = 7


@pytest.fixture
def run(pool):
    """`run(workers, function, *args)`: what `function` gives on each, one being no cluster."""

    def run(workers, function, *args):
        strategy = "multiworker" if workers > 1 else None
        return pool(workers, strategy=strategy).run(function, args=args, deadline=600)

    return run


def both(directory, name):
    whole = resume_cases.run(name, os.path.join(directory, "whole"), every=EVERY)
    broken = os.path.join(directory, "broken")
    assert resume_cases.run(name, broken, every=EVERY, break_at=BREAK_AT) is None
    return whole, resume_cases.run(name, broken, every=EVERY)


KEPT = {(2, "callbacks_and_averages")}
"""What `make test` breaks off and continues with."""


@pytest.mark.parametrize(
    ("workers", "name"),
    [
        pytest.param(*case, marks=() if case in KEPT else pytest.mark.full)
        for case in itertools.product([1, 2], resume_cases.CASES)
    ],
)
def test_ends_as_if_nothing_had_happened(tmp_path, workers, name, run):
    of_each = run(workers, both, str(tmp_path), name)
    for whole, again in of_each:
        for what in ("weights", "optimizer"):
            for one, other in zip(whole[what], again[what], strict=True):
                np.testing.assert_array_equal(one, other, err_msg=what)
        for what in ("history", "epochs", "drawn"):
            assert again[what] == whole[what], what
    whole, again = of_each[0]
    assert again["log"] == whole["log"]


def started(directory):
    assert resume_cases.run("on_any_number", directory, every=EVERY, break_at=9) is None


def continued(directory):
    return resume_cases.run("on_any_number", directory, every=EVERY)


@pytest.mark.parametrize(("before", "after"), [pytest.param(2, 1, marks=pytest.mark.full), (1, 2)])
def test_continues_with_another_number_of_workers(tmp_path, before, after, run):
    run(before, started, str(tmp_path / "moved"))
    moved = run(after, continued, str(tmp_path / "moved"))[0]
    again = run(after, continued, str(tmp_path / "moved"))[0]  # nothing is left to train
    whole = run(1, continued, str(tmp_path / "whole"))[0]
    for one, other in zip(whole["weights"], moved["weights"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(whole["history"]["loss"], moved["history"]["loss"], rtol=1e-5)
    assert whole["history"]["accuracy"] == pytest.approx(moved["history"]["accuracy"])
    assert again["history"] == moved["history"]
    assert again["drawn"] == moved["drawn"]
    for one, other in zip(again["optimizer"], moved["optimizer"], strict=True):
        np.testing.assert_array_equal(one, other)


def read_on(directory):
    return resume_cases.run("pipeline", directory, every=EVERY)


@pytest.mark.full
def test_other_workers_with_as_many_replicas_read_the_data_again(tmp_path, mirrored2, run):
    directory = str(tmp_path / "moved")
    with mirrored2.scope():
        broken = resume_cases.run("pipeline", directory, every=EVERY, break_at=9)
    assert broken is None
    one, other = run(2, read_on, directory)
    assert one["history"] == other["history"]
    assert len(one["epochs"]) == 4
