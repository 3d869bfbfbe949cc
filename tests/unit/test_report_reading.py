"""Records as events: of which attempt and fit, with which values, and what cannot be read."""

import io
import json
import math
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from made_run import make_run
from phalanx.monitoring.event_log import RecordWriter, records_path
from phalanx.monitoring.event_parsing import EventFieldError, integer, number, parse_event
from phalanx.monitoring.events import (
    EVENT_TYPES,
    HeartbeatEvent,
    ThroughputEvent,
    TrainMetrics,
    WorkerExitEvent,
    field_names,
)
from phalanx.report.data_quality import damages, format_damage
from phalanx.report.event_reader import CorruptLines, RunReader
from phalanx.report.live import LiveRun
from phalanx.report.run_data import load_run
from phalanx.report.run_json import to_json
from phalanx.report.summary import summarize
from phalanx.report.terminal_view import live_page

FEWER = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
PLACE = {"writer_rank": 0, "attempt": 0, "fit": 0}


def read(kind, **fields):
    return parse_event(kind, {"v": 1, "t": 5.0, "kind": kind.KIND, **fields}, **PLACE)


@pytest.mark.parametrize(
    ("written", "is_read"),
    [(1, 1.0), (0.5, 0.5), ("inf", math.inf), ("-inf", -math.inf), (True, None), ("1", None),
     (None, None), ([1], None), ("infinity", None), (10**400, None)],
)  # fmt: skip
def test_numbers(written, is_read):
    assert number(written) == is_read


def test_nan_is_a_number_but_no_complete_one():
    assert math.isnan(number("nan"))
    assert integer("nan") is None
    assert integer("inf") is None
    assert integer(2.5) is None
    assert integer(2.0) == 2


def test_an_event_has_the_values_of_its_record():
    event = read(TrainMetrics, step=3, epoch=1, logs={"loss": "nan", "odd": [1]}, learning_rate=0.1)
    assert (event.t, event.step, event.epoch, event.learning_rate) == (5.0, 3, 1, 0.1)
    assert list(event.logs) == ["loss"]


def test_the_worker_that_an_event_is_about_is_not_the_one_that_wrote_it():
    event = read(
        WorkerExitEvent,
        attempt=0,
        rank=2,
        code=-9,
        signal="SIGKILL",
        terminated_by_launcher=False,
        summary="killed",
    )
    assert (event.writer_rank, event.rank) == (0, 2)
    assert event.is_failure
    assert not read(
        WorkerExitEvent, attempt=0, rank=2, code=-15, signal="SIGTERM", terminated_by_launcher=True
    ).is_failure
    assert not read(
        WorkerExitEvent, attempt=0, rank=2, code=0, signal=None, terminated_by_launcher=False
    ).is_failure


def test_what_is_not_there_is_none_unless_it_is_needed():
    assert read(HeartbeatEvent).memory_bytes is None
    assert read(
        ThroughputEvent, step=1, time_fractions={"input": 0.5, "communication": None}
    ).time_fractions == {"input": 0.5}
    with pytest.raises(EventFieldError):
        read(TrainMetrics, logs={"loss": 1.0})
    with pytest.raises(EventFieldError):
        read(TrainMetrics, step="7")


@pytest.mark.parametrize("t", [None, "nan", math.inf, "soon"])
def test_without_a_time_it_is_no_event(t):
    with pytest.raises(EventFieldError):
        parse_event(HeartbeatEvent, {"t": t}, **PLACE)


def test_attempt_and_fit_are_reported_by_the_lines_above(tmp_path):
    with RecordWriter(records_path(tmp_path, 0), clock=lambda: 1.0) as writer:
        writer.write("heartbeat", phase="start")
        writer.write("worker_start", attempt=0)
        writer.write("fit_start", fit=0)
        writer.write("train_metrics", step=1)
        writer.write("fit_end", fit=0)
        writer.write("heartbeat", phase="idle")
        writer.write("fit_start", fit=1)
        writer.write("train_metrics", step=2)
        writer.write("worker_start", attempt=1)
        writer.write("fit_start", fit=0)
        writer.write("train_metrics", step=1)
    found = [(event.KIND, event.attempt, event.fit) for event in load_run(tmp_path).events]
    assert found == [
        ("heartbeat", 0, None), ("worker_start", 0, None), ("fit_start", 0, 0),
        ("train_metrics", 0, 0),
        ("fit_end", 0, 0), ("heartbeat", 0, None), ("fit_start", 0, 1), ("train_metrics", 0, 1),
        ("worker_start", 1, None), ("fit_start", 1, 0), ("train_metrics", 1, 0),
    ]  # fmt: skip


def test_unknown_kinds_are_passed_over_and_invalid_records_counted(tmp_path):
    path = records_path(tmp_path, 0)
    with RecordWriter(path, clock=lambda: 1.0) as writer:
        writer.write("tomorrow", x=1)
        writer.write("train_metrics", logs={})
    data = load_run(tmp_path)
    assert data.events == ()
    assert data.damage == (CorruptLines(file="worker-0.jsonl", invalid=1),)


def test_files_that_come_later_are_followed_too(tmp_path):
    reader = RunReader(tmp_path)
    assert reader.poll() == []
    for rank in (0, 1):
        with RecordWriter(records_path(tmp_path, rank), clock=lambda: 1.0) as writer:
            writer.write("heartbeat", step=rank)
        assert [(event.writer_rank, event.step) for event in reader.poll()] == [(rank, rank)]


def test_other_files_are_not_records(tmp_path):
    directory = tmp_path / "records"
    directory.mkdir()
    for name in ("worker-x.jsonl", "worker-0.jsonl.bak", "notes.txt"):
        (directory / name).write_text("x\n")
    assert load_run(tmp_path).damage == ()


def test_a_file_that_cannot_be_read_is_said(tmp_path):
    records_path(tmp_path, 0).mkdir(parents=True)
    (damage,) = load_run(tmp_path).damage
    assert format_damage(damage) == "worker-0.jsonl: it cannot be read: Is a directory."


def test_damage_is_said_in_words():
    damage = CorruptLines(
        file="worker-1.jsonl", damaged=(2, 4, 5, 6, 7, 8, 9), newer=(3,), invalid=1, unfinished=True
    )
    assert format_damage(damage) == (
        "worker-1.jsonl: lines 2, 4, 5, 6, 7 and 2 more are damaged and left out; line 3 is from "
        "a later version of Phalanx and left out; 1 record lacks what it needs: left out; the "
        "last line is incomplete."
    )


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"options": 3, "started": "noon"}'])
def test_a_damaged_run_file_costs_itself_only(tmp_path, text):
    path = make_run(tmp_path)
    (path / "run.json").write_text(text)
    data = load_run(path)
    assert summarize(data).steps == 240
    assert bool(damages(data)) == (not text.startswith('{"'))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs"))


@FEWER
@given(data=st.data())
def test_a_file_that_was_cut_is_read_up_to_there(made, tmp_path, data):
    """Every event before the cut is there, as it was."""
    whole = (made / "records" / "worker-0.jsonl").read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path = tmp_path / "cut" / "records" / "worker-0.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(whole[:cut])
    read = load_run(path.parent.parent)
    every = [event for event in load_run(made).events if event.writer_rank == 0]
    lines = whole[:cut].count(b"\n")
    assert list(read.events[:lines]) == every[:lines]
    assert len(read.events) <= lines + 1
    assert bool(read.damage) == (len(read.events) == lines and not whole[:cut].endswith(b"\n")
                                 and cut > 0)  # fmt: skip
    summarize(read)


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=4),
    st.sampled_from(["nan", "inf", "-inf"]),
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)
FIELDS = sorted(
    {name for kind in EVENT_TYPES.values() for name in field_names(kind)}
)  # fmt: skip


@FEWER
@given(
    lines=st.lists(
        st.tuples(
            st.sampled_from(sorted(EVENT_TYPES)), st.dictionaries(st.sampled_from(FIELDS), VALUES)
        ),
        max_size=8,
    )
)
def test_whatever_the_fields_hold_they_are_shown(tmp_path, lines):
    shutil.rmtree(tmp_path / "records", ignore_errors=True)
    path = records_path(tmp_path, 0)
    path.parent.mkdir()
    with path.open("w") as file:
        for kind, values in lines:
            file.write(json.dumps({"v": 1, "t": 1.5, "kind": kind, **values}) + "\n")
    data = load_run(tmp_path)
    assert len(data.events) + sum(damage.invalid for damage in data.damage) == len(lines)
    json.loads(to_json([data], now=2.0))
    run = LiveRun()
    run.take(data.events)
    Console(file=io.StringIO()).print(live_page(run, name="x", now=2.0))
