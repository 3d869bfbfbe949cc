"""A file of records is read as it grows, and each line once."""

import json

from hypothesis import given
from hypothesis import strategies as st

from phalanx.monitoring.event_log import RecordTail, read_records

LINE = b'{"v":1,"t":1.0,"kind":"train_metrics","step":%d}\n'


def test_each_look_gives_what_is_new(tmp_path):
    path = tmp_path / "worker-0.jsonl"
    tail = RecordTail(path)
    assert tail.poll() == []
    path.write_bytes(LINE % 1 + LINE % 2)
    assert [record["step"] for record in tail.poll()] == [1, 2]
    assert tail.poll() == []
    with path.open("ab") as file:
        file.write(LINE % 3)
    assert [record["step"] for record in tail.poll()] == [3]


def test_a_line_in_the_making_is_waited_for(tmp_path):
    path = tmp_path / "worker-0.jsonl"
    path.write_bytes(LINE[:20])
    tail = RecordTail(path)
    assert tail.poll() == []
    assert tail.unfinished
    with path.open("ab") as file:
        file.write((LINE % 7)[20:])
    assert [record["step"] for record in tail.poll()] == [7]
    assert not tail.unfinished
    assert tail.damaged == []


def test_a_record_that_lacks_its_lines_end_only_is_read_at_once_and_once(tmp_path):
    path = tmp_path / "worker-0.jsonl"
    path.write_bytes((LINE % 1)[:-1])
    tail = RecordTail(path)
    assert [record["step"] for record in tail.poll()] == [1]
    with path.open("ab") as file:
        file.write(b"\nbroken\n" + LINE % 2)
    assert [record["step"] for record in tail.poll()] == [2]
    assert tail.damaged == [2]


def test_only_what_is_new_is_read(tmp_path, monkeypatch):
    path = tmp_path / "worker-0.jsonl"
    path.write_bytes(LINE % 1 * 1000)
    tail = RecordTail(path)
    tail.poll()
    parsed = []
    monkeypatch.setattr("phalanx.monitoring.event_log.parse_line", lambda line: parsed.append(line))
    with path.open("ab") as file:
        file.write(LINE % 2)
    tail.poll()
    assert parsed == [(LINE % 2)[:-1]]


RECORDS = st.builds(
    lambda v, t, kind: json.dumps({"v": v, "t": t, "kind": kind}).encode(),
    st.integers(0, 3),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
)
LINES = st.lists(st.one_of(RECORDS, st.binary(max_size=12), st.just(b"")), max_size=12)


@given(lines=LINES, cuts=st.lists(st.integers(0, 400), max_size=6), whole=st.booleans())
def test_however_it_grows_it_gives_what_reading_at_once_gives(tmp_path_factory, lines, cuts, whole):
    written = b"\n".join(lines) + b"\n" * whole
    path = tmp_path_factory.mktemp("records") / "worker-0.jsonl"
    path.touch()
    tail, found, at = RecordTail(path), [], 0
    for cut in [*sorted(cuts), len(written)]:
        with path.open("ab") as file:
            file.write(written[at:cut])
        at = max(at, min(cut, len(written)))
        found += tail.poll()
    expected = read_records(path)
    assert found == expected.records
    assert tail.newer == expected.newer
    last = written.count(b"\n") + 1
    assert tail.damaged == [n for n in expected.damaged if not (tail.unfinished and n == last)]
    assert tail.unfinished == (not whole and last in expected.damaged)
