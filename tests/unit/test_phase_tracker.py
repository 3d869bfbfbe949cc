"""The phases of a process, and its heartbeats."""

import threading

import pytest
from tests.unit.event_list import EventList

from phalanx.monitoring.event_log import (
    EventLog,
    RecordWriter,
    event_log_of,
    read_records,
    worker_event_log,
)
from phalanx.monitoring.events import RunEnd, WorkerEnd
from phalanx.monitoring.phase_tracker import (
    SECONDS,
    HeartbeatWriter,
    PhaseTracker,
    record_moment,
)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def phase_tracker(clock):
    return PhaseTracker(clock=clock)


def test_phases_add_up(phase_tracker, clock):
    clock.now += 2
    phase_tracker.enter("compute")
    clock.now += 3
    with phase_tracker.during("callbacks"):
        clock.now += 1
        with phase_tracker.during("checkpoint"):
            clock.now += 5
        clock.now += 1
    clock.now += 4
    totals = {phase: seconds for phase, seconds in phase_tracker.totals().items() if seconds}
    assert totals == {"start": 2, "compute": 7, "callbacks": 2, "checkpoint": 5}


def test_a_phase_ends_when_its_block_raises(phase_tracker):
    phase_tracker.enter("compute")
    with pytest.raises(KeyError), phase_tracker.during("callbacks"):
        raise KeyError
    assert phase_tracker.beat().phase == "compute"


def test_a_phase_may_stand_for_one_other_only(phase_tracker):
    phase_tracker.enter("validation")
    with phase_tracker.during("compute", instead_of="callbacks"):
        assert phase_tracker.beat().phase == "validation"
    phase_tracker.enter("callbacks")
    with phase_tracker.during("compute", instead_of="callbacks"):
        assert phase_tracker.beat().phase == "compute"
    assert phase_tracker.beat().phase == "callbacks"


def test_a_beat_says_what_and_since_when_and_how_far(phase_tracker, clock):
    assert (phase_tracker.beat().phase, phase_tracker.beat().step, phase_tracker.beat().epoch) == (
        "start",
        None,
        None,
    )
    phase_tracker.enter("validation")
    phase_tracker.at(step=7, epoch=0)
    phase_tracker.at(step=8)
    clock.now += 1.5
    beat = phase_tracker.beat()
    assert (beat.phase, beat.seconds, beat.step, beat.epoch) == ("validation", 1.5, 8, 0)


def test_the_heart_beats_at_once_and_then_every_two_seconds(phase_tracker, clock):
    event_log, waits, done = EventList(), [], threading.Event()

    def wait(seconds):
        waits.append(seconds)
        clock.now += seconds
        if len(waits) == 2:
            phase_tracker.enter("compute")
        if len(waits) < 3:
            return False
        done.set()
        return True

    HeartbeatWriter(event_log, phase_tracker, wait=wait, memory=lambda: 123).start()
    assert done.wait(120)
    assert waits == [SECONDS] * 3
    assert [event.phase for event in event_log] == ["start", "start", "compute"]
    assert [event.phase_number for event in event_log] == [1, 1, 2]
    assert [event.phase_seconds for event in event_log] == [0, SECONDS, 0]
    assert {event.memory_bytes for event in event_log} == {123}


def test_a_beat_and_its_record_are_of_one_moment(phase_tracker, clock, tmp_path):
    path = tmp_path / "worker-0.jsonl"

    def open_slowly():
        clock.now += 0.4
        return RecordWriter(path, clock=clock)

    record_moment(EventLog(open_slowly), tracker=phase_tracker)
    (beat,) = read_records(path).records
    assert beat["phase_totals"] == {"start": pytest.approx(beat["t"] - 100)}
    assert beat["t"] == 100.4


def test_two_threads_that_beat_count_upwards(phase_tracker, clock, tmp_path):
    path = tmp_path / "worker-0.jsonl"
    event_log = EventLog.at(path, clock=clock)
    ready = threading.Barrier(4)

    def beat_often():
        ready.wait(60)
        for _ in range(200):
            clock.now += 0.001
            record_moment(event_log, tracker=phase_tracker)

    threads = [threading.Thread(target=beat_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    totals = [beat["phase_totals"].get("start", 0) for beat in read_records(path).records]
    assert len(totals) == 800
    assert totals == sorted(totals)


def test_a_closed_heart_beats_no_more(phase_tracker):
    event_log = EventList()
    with HeartbeatWriter(event_log, phase_tracker) as heartbeat:
        pass
    beats = len(event_log)
    heartbeat.close()
    assert len(event_log) == beats <= 1


class FullDisk:
    def __init__(self):
        self.is_full = True
        self.written = []

    def write(self, kind, /, **fields):
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.written.append(kind)


def test_a_full_disk_is_said_once_and_records_come_back(caplog):
    disk = FullDisk()
    event_log = EventLog(lambda: disk)
    event_log.append(WorkerEnd(ok=True))
    event_log.append(RunEnd(exit_code=0, report=None))
    disk.is_full = False
    event_log.append(WorkerEnd(ok=False))
    assert disk.written == ["worker_end"]
    (output,) = caplog.messages
    assert "No space left" in output


def test_a_directory_that_cannot_be_made_does_not_end_training(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    event_log = EventLog(lambda: RecordWriter(tmp_path / "file" / "worker-0.jsonl"))
    event_log.append(WorkerEnd(ok=True))
    assert len(caplog.messages) == 1


def test_one_journal_for_a_worker_and_none_without_a_launcher(tmp_path):
    assert event_log_of(str(tmp_path), 1) is event_log_of(str(tmp_path), 1)
    assert event_log_of(str(tmp_path), 1) is not event_log_of(str(tmp_path), 2)
    assert worker_event_log({}) is None
