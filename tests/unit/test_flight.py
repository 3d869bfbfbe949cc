"""The flight recorder: a ring of events in a file that outlives its process."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.monitoring.flight_format import FILE_SIZE, HEADER_SIZE, SLOT, SLOTS, TEXTS_SIZE
from phalanx.monitoring.flight_reader import read_flight
from phalanx.monitoring.flight_recorder import FlightRecorder
from phalanx.monitoring.flight_ring import Ring
from phalanx.monitoring.mapped_pages import MappedPages, PublishedPages, is_on_local_disk
from phalanx.monitoring.phase_tracker import PhaseTracker
from phalanx.monitoring.recorded_spans import SpanListener

SECOND = 10**9


class Clock:
    def __init__(self):
        self.time = 1000 * SECOND

    def __call__(self):
        self.time += SECOND
        return self.time


@pytest.fixture(params=[MappedPages, PublishedPages])
def pages(request, tmp_path):
    return request.param(tmp_path / "worker-0.flight")


@pytest.fixture
def ring(pages):
    ring = Ring(pages, clock=Clock())
    ring.introduce(rank=2, attempt=1, workers=3, pid=77, host="alpha")
    return ring


def read(pages, tmp_path):
    pages.publish()
    return read_flight(tmp_path / "worker-0.flight")


def test_what_is_written_is_read(ring, pages, tmp_path):
    ring.phase(ring.text("compute"), 1002 * SECOND, 1004 * SECOND, 4, 0)
    step = ring.begin("train", 0, step=5, epoch=0, steps=2, done=0)
    step.done, step.came, step.dimensions = 1, 1005 * SECOND, (8, 3)
    step.signature = ring.text("x float32[?, ?], y int32[8]")
    ring.write(step)
    flight = read(pages, tmp_path)
    assert (flight.rank, flight.attempt, flight.workers, flight.pid) == (2, 1, 3, 77)
    assert (flight.host, flight.started, flight.ended) == ("alpha", 1001 * SECOND, None)
    first, second = flight.events
    assert (first.kind, first.name, first.step, first.how) == ("phase", "compute", 4, "done")
    assert (first.begin, first.end) == (1002 * SECOND, 1004 * SECOND)
    assert second.is_open
    assert second.how == "open"
    assert (second.step, second.steps, second.done, second.came) == (5, 2, 1, 1005 * SECOND)
    assert second.batch == "x float32[8, 3], y int32[8]"
    assert second.bytes is None


def test_the_ring_keeps_the_last_events(ring, pages, tmp_path):
    long_ago = ring.begin("collective", ring.text("gather"), step=1, epoch=0, size=16)
    for _ in range(SLOTS + 10):
        ring.phase(0, ring.clock(), ring.clock(), 1, 0)
    ring.end(long_ago)  # Its place is another's by now.
    events = read(pages, tmp_path).events
    assert [event.number for event in events] == list(range(12, SLOTS + 12))
    assert {event.end - event.begin for event in events} == {SECOND}


def test_an_event_is_ended_in_its_place_when_the_ring_has_ended_round(ring, pages, tmp_path):
    for _ in range(2 * SLOTS - 3):
        ring.phase(0, ring.clock(), ring.clock(), 1, 0)
    for step in range(6):
        ring.end(ring.begin("train", 0, step=step, epoch=0, steps=1))
    events = [event for event in read(pages, tmp_path).events if event.kind == "train"]
    assert [(event.step, event.how) for event in events] == [(step, "done") for step in range(6)]


def test_a_worker_is_alive_till_it_says_that_it_has_ended(ring, pages, tmp_path):
    ring.alive()
    assert read(pages, tmp_path).ended is None
    ring.alive(ended=True)
    flight = read(pages, tmp_path)
    assert flight.ended == flight.alive


def test_an_event_that_is_half_written_is_left_out(ring, pages, tmp_path):
    for _ in range(3):
        ring.phase(0, ring.clock(), ring.clock(), 1, 0)
    at = HEADER_SIZE + TEXTS_SIZE + 2 * SLOT.size
    pages.memory[at : at + 8] = struct.pack("<Q", 2 + SLOTS)
    pages.changed(at, at + 8)
    assert [event.number for event in read(pages, tmp_path).events] == [1, 3]


def test_texts_that_find_no_room_are_left_out(ring, pages, tmp_path):
    numbers = [ring.text(f"{i} " + "long " * 150) for i in range(200)]
    assert numbers[-1] == 0
    assert ring.text("0 " + "long " * 150) == numbers[0] == 1
    ring.now(numbers[0], 1, 1, 0)
    assert read(pages, tmp_path).events[0].name.startswith("0 long")


@pytest.mark.parametrize("raw", [b"", b"PHXFLT01", b"\0" * FILE_SIZE, b"x" * 1000])
def test_what_is_no_flight_file_is_none(raw, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(raw)
    assert read_flight(file) is None
    assert read_flight(tmp_path / "absent") is None


def test_pages_on_a_full_disk_wait_for_room(tmp_path):
    pages = PublishedPages(tmp_path / "worker-0.flight")
    ring = Ring(pages)
    ring.introduce(rank=0, attempt=0, workers=1, pid=1, host="")
    kept, pages._path = pages._path, Path("/dev/full")
    with pytest.raises(OSError, match="No space"):
        pages.publish()
    pages._path = kept
    pages.publish()
    assert read_flight(tmp_path / "worker-0.flight") is not None


MOUNTS = """22 1 254:0 / / rw - ext4 /dev/vda rw
30 22 0:40 / /shared rw - nfs4 server:/shared rw
31 30 0:41 / /shared/fast\\040disk rw - xfs /dev/vdb rw
"""


@pytest.mark.parametrize(
    ("place", "local"), [("/runs", True), ("/shared/runs", False), ("/shared/fast disk/x", True)]
)
def test_only_local_disks_are_mapped(place, local, tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert is_on_local_disk(Path(place) / "file", mounts) is local
    assert not is_on_local_disk(Path(place) / "file", tmp_path / "absent")


KILLED = """
import os, signal, sys
from pathlib import Path
from phalanx.monitoring.mapped_pages import MappedPages
from phalanx.monitoring.flight_ring import Ring
ring = Ring(MappedPages(Path(sys.argv[1])))
ring.introduce(rank=0, attempt=0, workers=1, pid=os.getpid(), host="")
ring.begin("train", 0, step=41, epoch=3, steps=1)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.process
def test_a_process_that_is_killed_leaves_its_events(tmp_path):
    file = tmp_path / "worker-0.flight"
    done = subprocess.run([sys.executable, "-c", KILLED, str(file)], check=False)
    assert done.returncode == -9
    (event,) = read_flight(file).events
    assert (event.step, event.epoch, event.is_open) == (41, 3, True)


class Arrivals:
    reported = SpanListener(batches=1, when=0, signature="x float32[?]", dimensions=(8,))

    def last(self):
        return self.reported


@pytest.fixture
def recorder(tmp_path):
    recorder = FlightRecorder()
    recorder.open(tmp_path / "worker-0.flight", rank=0, attempt=0, workers=1)
    yield recorder
    recorder.close()


def events_of(tmp_path):
    return read_flight(tmp_path / "worker-0.flight").events


def test_the_recorder_follows_the_pulse(recorder, tmp_path, monkeypatch):
    phase_tracker = PhaseTracker()
    phase_tracker.follow(recorder)
    monkeypatch.setattr("phalanx.monitoring.flight_recorder._SHORT", 0)
    phase_tracker.at(step=3, epoch=1)
    phase_tracker.enter("checkpoint")
    reported = [(e.name, e.step, e.epoch, e.is_open) for e in events_of(tmp_path)]
    assert reported == [("start", None, None, False), ("checkpoint", 3, 1, True)]
    monkeypatch.setattr(
        "phalanx.monitoring.flight_recorder._SHORT", 2**62
    )  # however slow this machine is
    phase_tracker.enter("idle")
    names = [e.name for e in events_of(tmp_path)]
    assert names == ["start", "idle"]  # A short phase leaves no event.
    phase_tracker.enter("compute")
    names = [e.name for e in events_of(tmp_path)]
    assert names == ["start", "idle", "compute"]  # But for that between two calls.


def test_short_steps_are_not_all_asked_for_their_batches(recorder, tmp_path):
    for _ in range(2):
        recorder._read_at = 2**62
        with recorder.execution("train", 1, Arrivals()):
            pass
    (first, second) = (e for e in events_of(tmp_path) if e.kind == "train")
    assert first.done is second.done is None
    assert not first.is_open


def test_steps_count_on_where_no_one_says_how_many_there_were(recorder, tmp_path):
    for _ in range(2):
        with recorder.execution("train"):
            pass
    with recorder.execution("train", 5) as execution:
        execution.done = 3
    with pytest.raises(StopIteration), recorder.execution("train"):
        raise StopIteration
    with pytest.raises(KeyError), recorder.execution("test"):
        raise KeyError
    reported = [(e.kind, e.step, e.how) for e in events_of(tmp_path) if e.kind != "phase"]
    assert reported == [
        ("train", 1, "done"),
        ("train", 2, "done"),
        ("train", 3, "done"),
        ("train", 6, "out of data"),
        ("test", 5, "failed"),
    ]


def test_a_batch_that_came_before_the_step_is_another_steps(recorder, tmp_path):
    arrivals = Arrivals()
    with recorder.execution("train", 1, arrivals):
        pass
    recorder._read_at = 0
    with recorder.execution("train", 1, arrivals) as execution:
        arrivals.reported = SpanListener(
            batches=1, when=execution.event.begin, signature="x float32[?]", dimensions=(8,)
        )
    first, second = (e for e in events_of(tmp_path) if e.kind == "train")
    assert (first.done, first.came, first.batch) == (0, None, "")
    assert (second.done, second.came, second.batch) == (1, second.begin, "x float32[8]")


def test_a_step_that_takes_long_is_looked_at_while_it_does(recorder, tmp_path):
    arrivals = Arrivals()
    arrivals.reported = SpanListener(batches=1, when=2**62, signature="", dimensions=())
    with recorder.execution("train", 1, arrivals):
        recorder._poll()
        (event,) = (e for e in events_of(tmp_path) if e.kind == "train")
        assert event.is_open
        assert event.done == 1


def test_a_recorder_without_a_file_does_nothing():
    recorder = FlightRecorder()
    recorder.phase("compute")
    with recorder.execution("train"), recorder.collective("gather", 8):
        pass
    recorder.close()
    assert not recorder.is_open


def test_a_file_that_cannot_be_made_is_said_once(tmp_path, caplog):
    recorder = FlightRecorder()
    recorder.open(tmp_path / "absent" / "file", rank=0, attempt=0, workers=1)
    assert not recorder.is_open
    assert "training continues without" in caplog.text
