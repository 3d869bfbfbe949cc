"""What the time of a run was spent on: each row by made-up events, and that the rows add up."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.monitoring.events import (
    AttemptStart,
    FitEnd,
    FitStart,
    HeartbeatEvent,
    RunEnd,
    RunStart,
    ThroughputEvent,
    WorkerExitEvent,
    WorkerStart,
)
from phalanx.report.formatting import goodput_line
from phalanx.report.goodput import ROWS, measure_goodput

WAITING = {"compute": 0.5, "input": 0.25, "communication": 0.25, "callbacks": 0, "checkpoint": 0}


class Run:
    """The events of a run of one worker, written as its time passes."""

    def __init__(self):
        self.now, self.launcher, self.chief = 1000.0, [], []
        self.skew = 0.0  # of the chief's clock against the launcher's
        self.attempt, self.fit, self.step, self.number = -1, None, 0, 0

    @property
    def events(self):
        return [*self.launcher, *self.chief]

    def rows(self, **options):
        found = measure_goodput(self.events, **options)
        seconds = {row: each for row, each in found.rows.items() if each > 1e-9}
        return SimpleNamespace(found=found, seconds=seconds)

    @property
    def seen(self):
        """The time by the chief's clock."""
        return self.now + self.skew

    def begin(self):
        start = RunStart(t=self.now, name="r", workers=1, strategy=None, seed=0, argv=())
        self.launcher.append(start)
        return self

    def start(self, seconds=3.0):
        """A worker group starts; the script's first line is reached after `seconds`."""
        self.attempt, self.fit, self.step = self.attempt + 1, None, 0
        self.spent, self.phase, self.since, self.number = {}, "start", self.now, 0
        self.launcher.append(AttemptStart(t=self.now, attempt=self.attempt, workers=()))
        self.beat()
        self.spend("start", seconds)
        self.chief.append(
            WorkerStart(
                t=self.seen, writer_rank=0, attempt=self.attempt, rank=0, role=None, workers=1,
                pid=1, host=None, replicas=1, devices=(), versions={},
            )
        )  # fmt: skip
        return self

    def fit_start(self, number=0, step=0):
        self.fit, self.step = number, step
        self.chief.append(
            FitStart(
                t=self.seen, writer_rank=0, attempt=self.attempt, fit=number, epochs=1,
                initial_epoch=0, steps=9, model=None, parameters=None, optimizer=None, step=step,
            )
        )  # fmt: skip
        self.spend("compute", 0.0).beat()
        return self

    def steps(self, count, seconds):
        """That many steps, `seconds` in all, and a heartbeat."""
        self.spend("compute", seconds)
        self.step += count
        self.since = self.now
        self.beat()
        return self

    def spend(self, phase, seconds):
        if phase != self.phase:
            self.phase, self.since, self.number = phase, self.now, self.number + 1
        self.now += seconds
        self.spent = {**self.spent, phase: self.spent.get(phase, 0.0) + seconds}
        return self

    def beat(self):
        self.number += 1
        self.chief.append(
            HeartbeatEvent(
                t=self.seen, writer_rank=0, attempt=self.attempt, fit=self.fit, phase=self.phase,
                phase_number=self.number, phase_seconds=self.now - self.since, step=self.step,
                epoch=0, memory_bytes=1.0, phase_totals=dict(self.spent),
            )
        )  # fmt: skip
        return self

    def fit_end(self):
        self.beat()
        self.chief.append(
            FitEnd(
                t=self.seen, writer_rank=0, attempt=self.attempt, fit=self.fit, step=self.step,
                epoch=0, seconds=1.0,
            )
        )  # fmt: skip
        self.fit = None
        return self.spend("idle", 0.0)

    def window(self, rank, fractions, seconds=10.0, step=10):
        self.chief.append(
            ThroughputEvent(
                t=self.seen, writer_rank=rank, attempt=self.attempt, step=step, steps=5,
                seconds=seconds, samples=1.0, samples_per_second=1.0, step_seconds={},
                time_fractions=fractions, memory_bytes=1.0,
            )
        )  # fmt: skip
        return self

    def exit(self, code=0, signal=None, after=0.0):
        """The process ends, which the launcher finds `after` seconds later."""
        self.now += after
        self.launcher.append(
            WorkerExitEvent(
                t=self.now, attempt=self.attempt, rank=0, code=code, signal=signal,
                terminated_by_launcher=False, summary=None,
            )
        )  # fmt: skip
        return self

    def end(self, code=0):
        self.launcher.append(RunEnd(t=self.now, exit_code=code, report=None))
        return self

    def sleep(self, seconds):
        self.now += seconds
        return self


def trained(count=10, seconds=20.0):
    """A run that has just trained; its start took 3 s and its first step 2 s."""
    return Run().begin().start().fit_start().steps(1, 2.0).steps(count, seconds)


def test_a_run_without_a_fit_has_no_goodput():
    assert (
        measure_goodput(Run().begin().start().spend("idle", 5).beat().exit().end().events) is None
    )
    assert measure_goodput([]) is None


def test_starting_the_first_step_and_training():
    found = trained().fit_end().exit().end().rows()
    assert found.seconds == pytest.approx({"starting": 3, "first_step": 2, "training": 20})
    assert found.found.goodput == pytest.approx(20 / 25)
    assert found.found.not_measured == ("input", "waiting")


def test_the_scripts_lines_before_fit_are_starting_and_those_after_it_are_outside():
    run = Run().begin().start().spend("idle", 4.0).beat().fit_start().steps(1, 1.0)
    found = run.steps(5, 10).fit_end().spend("idle", 6.0).beat().exit(after=0.5).end().rows()
    assert found.seconds == pytest.approx(
        {"starting": 7, "first_step": 1, "training": 10, "outside": 6.5}
    )


def test_a_second_fit_has_a_first_step_too():
    run = trained().fit_end().spend("idle", 1.0).beat().fit_start(1, step=11).steps(1, 3.0)
    found = run.steps(4, 8.0).fit_end().exit().end().rows()
    assert found.seconds == pytest.approx(
        {"starting": 3, "first_step": 5, "training": 28, "outside": 1}
    )


@pytest.mark.parametrize(
    ("phase", "row"),
    [("callbacks", "callbacks"), ("checkpoint", "saving"), ("validation", "validation"),
     ("compute", "training"), ("input", "training"), ("idle", "outside")],
)  # fmt: skip
def test_each_phase_of_a_fit_has_its_row(phase, row):
    expected = {"starting": 3, "first_step": 2, "training": 20}
    expected[row] = expected.get(row, 0) + 7
    found = trained().spend(phase, 7.0).spend("compute", 0).fit_end().exit().end().rows()
    assert found.seconds == pytest.approx(expected)


def test_waiting_for_input_and_for_the_slowest_worker():
    run = trained(seconds=40.0).window(0, WAITING)
    run.window(1, {**WAITING, "input": 0.4, "communication": 0.1})  # the others wait for it
    found = run.fit_end().exit().end().rows()
    # Input: (25 % + 40 %) / 2 of 40 s; waiting: 15 % of worker 0's time alone, so half of it.
    assert found.seconds == pytest.approx(
        {"starting": 3, "first_step": 2, "input": 13, "waiting": 3, "training": 24}
    )
    assert found.found.not_measured == ()
    assert found.found.step_seconds == pytest.approx(40)


def failed(run, **options):
    return run.exit(code=None, signal="SIGKILL", **options)


def test_steps_after_the_checkpoint_are_trained_again():
    run = trained(10, 20.0).spend("checkpoint", 0.0).beat()  # of step 11
    run.spend("checkpoint", 1.0).spend("compute", 0).steps(3, 6.0)
    failed(run).sleep(5.0).start(4.0).fit_start(step=11).steps(1, 2.5).steps(9, 18.0)
    found = run.fit_end().exit().end().rows()
    assert found.seconds == pytest.approx(
        {"starting": 3 + 5 + 4, "first_step": 4.5, "training": 38, "saving": 1, "repeated": 6}
    )
    assert found.found.steps_repeated == 3


def test_between_two_heartbeats_the_steps_are_taken_as_equally_long():
    run = trained(10, 20.0).steps(4, 8.0)
    failed(run).start().fit_start(step=12).steps(1, 2.0)
    found = run.fit_end().exit().end().rows()
    assert found.seconds["training"] == pytest.approx(20 + 2)
    assert found.seconds["repeated"] == pytest.approx(6)


def test_without_a_checkpoint_all_steps_are_trained_again():
    run = failed(trained()).start().fit_start(step=0).steps(1, 2.0).steps(5, 5.0)
    found = run.fit_end().exit().end().rows()
    assert found.seconds == pytest.approx(
        {"starting": 6, "first_step": 4, "repeated": 20, "training": 5}
    )


def test_an_attempt_that_trains_nothing_undoes_nothing_and_is_starting():
    run = failed(trained()).start().fit_start(step=0)
    failed(run, after=2.0).start().fit_start(step=11).steps(1, 2.0)
    found = run.fit_end().exit().end().rows()
    assert found.seconds == pytest.approx({"starting": 3 + 5 + 3, "first_step": 4, "training": 20})


def test_a_later_attempt_may_resume_before_an_earlier_one():
    run = failed(trained(10, 20.0)).start().fit_start(step=11).steps(1, 2.0).steps(4, 8.0)
    failed(run).start().fit_start(step=6).steps(1, 2.0)  # the newest checkpoint is damaged
    found = run.fit_end().exit().end().rows()
    assert found.seconds["training"] == pytest.approx(10)
    assert found.seconds["repeated"] == pytest.approx(10 + 8)


def test_a_fit_of_an_earlier_number_is_not_trained_again():
    run = trained().fit_end().fit_start(1, step=0).steps(1, 1.0).steps(4, 8.0)
    failed(run).start().fit_start(0, step=11).fit_end()
    run.fit_start(1, step=3).steps(1, 1.0).steps(3, 6.0)
    found = run.fit_end().exit().end().rows()
    assert found.seconds["training"] == pytest.approx(20 + 4 + 6)
    assert found.seconds["repeated"] == pytest.approx(4)


def test_a_hang_is_a_failure_since_the_last_step():
    run = trained().spend("compute", 30.0).beat().spend("compute", 2.0).beat()
    failed(run, after=3.0).start().fit_start(step=11).steps(1, 2.0)
    found = run.fit_end().exit().end().rows()
    assert found.seconds["failures"] == pytest.approx(35)
    assert found.seconds["training"] == pytest.approx(20)


def test_a_silent_machine_is_a_failure_since_its_last_heartbeat():
    run = failed(trained(), after=60.0).start().fit_start(step=11).steps(1, 2.0)
    found = run.fit_end().exit().end().rows()
    assert found.seconds["failures"] == pytest.approx(60)


def test_what_a_killed_worker_did_since_its_last_heartbeat_is_trained_again():
    run = failed(trained(), after=1.5).start().fit_start(step=11).steps(1, 2.0)
    found = run.fit_end().exit().end().rows()
    assert found.seconds["repeated"] == pytest.approx(1.5)
    assert "failures" not in found.seconds


def test_the_time_between_the_sessions_of_a_resumed_run_does_not_count():
    run = trained().fit_end().exit(code=75).end(75).sleep(1000.0)
    run.begin().sleep(1.0).start().fit_start(step=11).steps(1, 2.0).steps(4, 8.0)
    found = run.fit_end().exit().end().rows()
    assert found.found.not_running == pytest.approx(1000)
    assert found.seconds == pytest.approx({"starting": 7, "first_step": 4, "training": 28})


def test_a_killed_launcher_leaves_no_end():
    run = trained().sleep(500.0).begin().start().fit_start(step=11).steps(1, 2.0)
    found = run.fit_end().exit().end().rows()
    assert found.found.not_running == pytest.approx(500)
    assert found.seconds == pytest.approx({"starting": 6, "first_step": 4, "training": 20})


def test_a_run_that_still_runs_counts_up_to_now():
    run = trained()
    assert run.rows().seconds["training"] == pytest.approx(20)
    assert run.rows(until=run.now + 1.5).seconds["training"] == pytest.approx(21.5)
    saving = run.spend("checkpoint", 1.0).beat().rows(until=run.now + 2.0).seconds
    assert saving["saving"] == pytest.approx(3)


def test_a_wall_clock_that_is_set_moves_no_time_between_rows():
    run = trained()
    run.skew = -15.0
    run.steps(5, 10.0).spend("callbacks", 4.0).spend("compute", 0.0)
    found = run.fit_end().exit().end().rows()
    assert found.seconds == pytest.approx(
        {"starting": 3, "first_step": 2, "training": 30, "callbacks": 4}
    )


def test_records_of_before_the_totals_of_phases():
    run = trained().spend("validation", 3.0).beat().spend("compute", 0.0).fit_end().exit().end()
    run.chief = [
        HeartbeatEvent(**{**vars(e), "phase_totals": {}}) if isinstance(e, HeartbeatEvent) else e
        for e in run.chief
    ]
    assert run.rows().seconds == pytest.approx(
        {"starting": 3, "first_step": 2, "training": 20, "validation": 3}
    )


@st.composite
def runs(draw):
    """Runs in which anything may follow anything; the chief's clock is set at times."""
    seconds, some = st.floats(0, 20), st.sampled_from
    run = Run().begin()
    for _ in range(draw(st.integers(1, 4))):
        run.sleep(draw(seconds)).start(draw(seconds))
        for fit in range(draw(st.integers(0, 3))):
            run.fit_start(fit, step=draw(st.integers(0, 40)))
            for _ in range(draw(st.integers(0, 8))):
                run.spend(draw(some([*WAITING, "validation", "idle"])), draw(seconds))
                if draw(st.booleans()):
                    run.steps(draw(st.integers(1, 9)), draw(seconds))
                run.skew += draw(some([0, 0, -30, 30]))
                if draw(st.booleans()):
                    fractions = {name: draw(st.floats(0, 1)) for name in WAITING}
                    run.window(draw(some([0, 1, 2])), fractions, draw(seconds), run.step)
            if draw(st.booleans()):
                run.fit_end().spend("idle", draw(seconds))
        if draw(st.booleans()):
            code, signal = draw(some([(0, None), (75, None), (1, None), (None, "SIGKILL")]))
            run.exit(code, signal, after=draw(some([0, 0.1, 8.0])))
        if draw(some([True, False, False])):
            run.end(1).sleep(draw(seconds)).begin()
    return run.end() if draw(st.booleans()) else run


@settings(max_examples=300, deadline=None)
@given(runs())
def test_rows_are_not_negative_and_add_up_to_the_time_of_the_run(run):
    found = measure_goodput(run.events, until=run.now)
    if found is None:
        return
    assert found.rows.keys() == ROWS.keys()
    assert min(found.rows.values()) >= 0
    assert sum(found.rows.values()) == pytest.approx(found.seconds)
    assert found.not_running >= 0 <= found.steps_repeated
    assert 0 <= found.goodput <= 1
    if len([event for event in run.launcher if isinstance(event, RunStart)]) == 1:
        assert found.seconds == pytest.approx(run.now - 1000.0)


def test_goodput_in_a_line():
    losses = [("starting", 0.09), ("saving", 0.03), ("callbacks", 0.01), ("failures", 0.004)]
    assert goodput_line(0.866, losses, most=2) == "goodput 87%; starting 9%, saving 3%, all else 1%"
    assert goodput_line(1.0, []) == "goodput 100%"
