"""Curves: what a restart undid does not count, and thinning loses no peak."""

import math

import pytest

from made_run import BEGAN, FAILS_AT, RESUMES_AT, make_run
from phalanx.monitoring.event_log import RecordWriter, launcher_records_path, records_path
from phalanx.report.run_data import load_run
from phalanx.report.series import Series, gradients, learning_rate, metrics, thinned


class Worker:
    """Writes a chief's records, one a second."""

    def __init__(self, run):
        self.run, self.now = run, 100.0
        self.writer = RecordWriter(records_path(run, 0), clock=lambda: self.now)

    def write(self, kind, **fields):
        self.now += 1.0
        self.writer.write(kind, **fields)
        return self

    def attempt(self, number, fit=0):
        return self.write("worker_start", attempt=number).write("fit_start", fit=fit)

    def steps(self, *steps, loss=1.0):
        for step in steps:
            self.write("train_metrics", step=step, logs={"loss": loss})
        return self

    def curves(self):
        self.writer.close()
        data = load_run(self.run)
        return {series.name: series for series in metrics(data)}


@pytest.fixture
def worker(tmp_path):
    return Worker(tmp_path)


def test_of_two_attempts_the_steps_that_count(worker):
    worker.attempt(0).steps(10, 20, 30, 35, loss=1.0)
    curves = worker.attempt(1).steps(25, 35, 45, loss=2.0).curves()
    assert curves["train"].steps == (10, 20, 25, 35, 45)
    assert curves["train"].values == (1.0, 1.0, 2.0, 2.0, 2.0)
    assert curves["undone by a restart"].steps == (30, 35)


def test_an_attempt_that_went_less_far_than_the_one_before(worker):
    worker.attempt(0).steps(10, 20, 30, 40)
    worker.attempt(1).steps(25)
    curves = worker.attempt(2).curves()
    assert curves["train"].steps == (10, 20, 25)
    assert curves["undone by a restart"].steps == (30, 40)


def test_three_attempts_the_last_from_the_start(worker):
    worker.attempt(0).steps(10, 20)
    worker.attempt(1).steps(20, 30)
    curves = worker.attempt(2).steps(5, 10).curves()
    assert curves["train"].steps == (5, 10)
    assert curves["undone by a restart"].steps == (10, 20, 20, 30)


def test_the_same_step_twice_counts_once_and_as_it_was_last(worker):
    worker.attempt(0).steps(10, loss=1.0).steps(10, loss=2.0)
    curves = worker.curves()
    assert (curves["train"].steps, curves["train"].values) == ((10,), (2.0,))


def test_each_fit_has_a_line_of_its_own(worker):
    worker.attempt(0).steps(1, 2).write("fit_end", fit=0)
    curves = worker.write("fit_start", fit=1).steps(1, 2, 3).curves()
    assert curves["train, fit 0"].steps == (1, 2)
    assert curves["train, fit 1"].steps == (1, 2, 3)


def test_time_runs_from_the_beginning_of_the_run(worker):
    with RecordWriter(launcher_records_path(worker.run), clock=lambda: 90.0) as launcher:
        launcher.write("run_start", workers=1)
    curves = worker.attempt(0).steps(1).curves()
    assert curves["train"].seconds == (13.0,)


def test_values_that_are_not_finite_stay(worker):
    worker.attempt(0).steps(1, loss=math.nan).steps(2, loss=math.inf).steps(3, loss=0.5)
    series = worker.curves()["train"]
    assert series.not_finite == (1, 2)
    assert series.values[1:] == (math.inf, 0.5)


def test_the_made_run(tmp_path):
    data = load_run(make_run(tmp_path))
    curves = {(series.of, series.kind): series for series in metrics(data)}
    assert curves["loss", "step"].steps == tuple(range(5, 241, 5))
    assert curves["loss", "lost"].steps == tuple(range(RESUMES_AT + 5, FAILS_AT + 1, 5))
    assert curves["loss", "validation"].steps == (60, 120, 180, 240)
    assert curves["accuracy", "epoch"].steps == (60, 120, 180, 240)
    assert data.began == BEGAN
    (rate,) = learning_rate(data)
    assert list(rate.steps) == sorted(rate.steps)
    norms = gradients(data, "gradients/norm")
    assert [series.name for series in norms] == ["worker 0", "worker 1", "worker 2", "total"]
    assert norms[0].steps == tuple(range(20, 241, 20))


def series_of(values):
    count = len(values)
    return Series(
        name="x", of="x", kind="step", steps=tuple(range(count)),
        seconds=tuple(map(float, range(count))), values=tuple(values),
    )  # fmt: skip


def test_thinning_keeps_ends_and_peaks():
    values = [0.0] * 10_000
    values[1234], values[8765], values[5000] = 9.0, -9.0, math.nan
    short = thinned(series_of(values), 200)
    assert len(short.values) < 250
    assert (max(short.values), min(short.values)) == (9.0, -9.0)
    assert short.steps[short.values.index(9.0)] == 1234
    assert (short.steps[0], short.steps[-1]) == (0, 9999)
    assert list(short.steps) == sorted(set(short.steps))


def test_a_short_curve_is_not_thinned():
    series = series_of([1.0, 2.0])
    assert thinned(series, 2) is series


def test_a_curve_of_nan_is_thinned_too():
    assert len(thinned(series_of([math.nan] * 1000), 100).values) < 60
