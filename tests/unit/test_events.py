"""Records: what is written comes back, and damage costs the damaged lines only."""

import json
import math
import multiprocessing
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors import ConfigurationError
from phalanx.monitoring.event_log import RecordWriter, read_records, records_path

NAMES = st.text(min_size=1).filter(lambda name: name not in ("v", "t", "kind"))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(LEAVES, lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=8)
RECORDS = st.tuples(st.text(), st.dictionaries(NAMES, VALUES, max_size=4))

FEWER = settings(max_examples=50, deadline=None)


def as_read(value):
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [as_read(each) for each in value]
    if isinstance(value, dict):
        return {key: as_read(each) for key, each in value.items()}
    return value


def written(path, records, *, now=12.5):
    path.unlink(missing_ok=True)
    with RecordWriter(path, clock=lambda: now) as writer:
        for kind, fields in records:
            writer.write(kind, **fields)
    return path.read_bytes()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("records") / "r.jsonl"


@given(records=st.lists(RECORDS, max_size=5))
@FEWER
def test_what_is_written_is_read(path, records):
    text = written(path, records)
    found = read_records(path)
    assert found.records == [
        {"v": 1, "t": 12.5, "kind": kind, **as_read(fields)} for kind, fields in records
    ]
    assert (found.damaged, found.newer) == ([], [])
    assert text.count(b"\n") == len(records)


@pytest.mark.process
@given(records=st.lists(RECORDS, min_size=1, max_size=4), data=st.data())
@FEWER
def test_a_file_cut_anywhere_keeps_its_complete_lines(path, records, data):
    whole = written(path, records)
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    found = read_records(path)
    ends = [i for i in range(len(whole)) if whole[i : i + 1] == b"\n"]
    # A line is complete without its newline too.
    assert len(found.records) == sum(end <= cut for end in ends)
    starts = [0, *(end + 1 for end in ends)]
    torn = [n for n, (s, e) in enumerate(zip(starts, ends, strict=False), 1) if s < cut < e]
    assert found.damaged == torn

    with RecordWriter(path) as writer:
        writer.write("after")
    again = read_records(path)
    assert again.records[-1]["kind"] == "after"
    assert len(again.records) == len(found.records) + 1
    assert again.damaged == torn


@given(rubbish=st.binary(max_size=60))
@settings(deadline=None)
def test_rubbish_costs_itself_only(path, rubbish):
    first, last = (written(path, [(kind, {"x": 1})]) for kind in ("first", "last"))
    path.write_bytes(first + rubbish + b"\n" + last)
    kinds = [record["kind"] for record in read_records(path).records]
    assert kinds == ["first", "last"]


@pytest.mark.parametrize(
    "line",
    [
        b"[1, 2]",
        b'{"v":1,"t":NaN,"kind":"x"}',
        b'{"v":1,"t":0}',
        b'{"v":1,"t":"0","kind":"x"}',
        b'{"v":true,"t":0,"kind":"x"}',
        b'{"t":0,"kind":"x"}',
        b"[" * 100_000,
        b'{"v":1,"t":0,"kind":"x","y":' + b"9" * 5000 + b"}",
        '{"v":1,"t":0,"kind":"x"}'.encode("utf-16-le"),
        b"\x00" * 20,
    ],
)
def test_a_line_that_is_no_record_is_named(path, line):
    path.write_bytes(line + b"\n" + written(path, [("good", {})]))
    found = read_records(path)
    assert found.damaged == [1]
    assert [record["kind"] for record in found.records] == ["good"]


def test_a_newer_schema_is_not_damage(path):
    path.write_bytes(b'{"v":2,"what":"is this"}\n')
    found = read_records(path)
    assert (found.records, found.damaged, found.newer) == ([], [], [1])


def test_numpy_values_become_numbers(path):
    fields = {
        "norm": np.float32(0.5),
        "steps": np.int64(3),
        "bad": np.array([np.nan, -np.inf, 1.0]),
        "scalar": np.array(2.0),
        "shape": (2, 3),
    }
    line = json.loads(written(path, [("train_metrics", fields)]))
    assert line == {
        "v": 1, "t": 12.5, "kind": "train_metrics", "norm": 0.5, "steps": 3,
        "bad": ["nan", "-inf", 1.0], "scalar": 2.0, "shape": [2, 3],
    }  # fmt: skip
    assert math.isnan(float(line["bad"][0]))


@pytest.mark.parametrize("value", [object(), {1: 2}, {1, 2}, b"x", 1j, np.array([object()])])
def test_a_value_that_is_no_data_is_refused_and_nothing_written(path, value):
    with RecordWriter(path) as writer:
        before = path.read_bytes()
        with pytest.raises(ConfigurationError, match="'gradient' cannot hold"):
            writer.write("train_metrics", gradient=value)
        with pytest.raises(ConfigurationError, match="cannot be named 't'"):
            writer.write("train_metrics", t=1.0)
    assert path.read_bytes() == before


def test_a_line_is_there_when_write_returns(path):
    path.unlink(missing_ok=True)
    with RecordWriter(path) as writer:
        writer.write("train_metrics", step=1)
        assert len(read_records(path).records) == 1
    with pytest.raises(ValueError, match="closed"):
        writer.write("step")


LINES = 300


def write_many(path, start, who):
    start.wait()
    with RecordWriter(path) as writer:
        for number in range(LINES):
            writer.write("train_metrics", who=who, number=number, text="x" * (number * 37 % 9000))


def test_two_processes_write_one_file(tmp_path):
    path = tmp_path / "shared.jsonl"
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(2)
    writers = [context.Process(target=write_many, args=(path, start, who)) for who in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    found = read_records(path)
    assert found.damaged == []
    for who in range(2):
        numbers = [record["number"] for record in found.records if record["who"] == who]
        assert numbers == list(range(LINES))


def test_the_place_in_the_run_directory(tmp_path):
    path = records_path(tmp_path, 3)
    assert path == tmp_path / "records" / "worker-3.jsonl"
    RecordWriter(path).close()
    assert path.exists()


def test_no_file_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_records(tmp_path / "none.jsonl")


@pytest.mark.process
def test_records_need_no_tensorflow():
    program = (
        "import sys, phalanx.monitoring.event_parsing; "
        "print(sorted({'tensorflow', 'keras', 'tensorboard'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_a_line_that_only_half_got_out_costs_no_later_one(tmp_path, monkeypatch):
    path = tmp_path / "r.jsonl"
    write = os.write

    def half(file, line):
        write(file, line[: len(line) // 2])
        raise OSError(28, "No space left on device")

    with RecordWriter(path) as writer:
        monkeypatch.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space"):
            writer.write("lost", number=1)
        monkeypatch.setattr(os, "write", write)
        writer.write("kept", number=2)
    found = read_records(path)
    assert [record["kind"] for record in found.records] == ["kept"]
    assert found.damaged == [1]
