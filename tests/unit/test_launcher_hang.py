"""When a run makes no progress, and what is said of it."""

import json
import os
import signal
from types import SimpleNamespace

import pytest

from phalanx.errors import ConfigurationError
from phalanx.launcher.hang_detector import HangDetector, StepTimeTracker, makes_no_progress
from phalanx.launcher.options import RunOptions
from phalanx.launcher.rendezvous.remote_node import RemoteWorker
from phalanx.launcher.run_layout import AttemptPaths
from phalanx.launcher.worker_status import (
    HeartbeatReader,
    WorkerProgress,
    last_heartbeat_in,
    main_frames,
)
from phalanx.monitoring.event_log import RecordWriter, records_path
from phalanx.monitoring.flight_recorder import FlightRecorder

WAITS = """Thread 0x01 (most recent call first):
  File "/venv/site-packages/x.py", line 1 in other

Current thread 0x02 (most recent call first):
  File "/venv/site-packages/tensorflow/python/eager/execute.py", line 53 in quick_execute
  File "/venv/site-packages/phalanx/training/step_function.py", line 9 in on_iterator
  File "/home/me/train.py", line 20 in <module>
"""
AWAY = """Current thread 0x02 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 5 in wait
  File "/home/me/train.py", line 7 in on_train_batch_end
  File "/venv/site-packages/phalanx/training/fit.py", line 9 in fit
"""


def at(phase, since):
    return WorkerProgress(phase=phase, since=since)


@pytest.mark.parametrize(
    ("positions", "stuck"),
    [
        ([at("compute", 0), at("callbacks", 10)], True),
        ([at("compute", 0), at("callbacks", 11)], False),
        ([at("compute", 0), at("idle", 0)], True),
        ([at("compute", 0), at("start", 10)], True),
        ([at("idle", 0), at("idle", 0)], False),
        ([at("compute", 0)], True),
        ([], False),
    ],
)
def test_a_run_makes_no_progress_when_somebody_trains_and_no_one_moves(positions, stuck):
    assert makes_no_progress(positions, timeout=90, now=100) is stuck


MAKES_DATA = (
    """Thread 0x01 (most recent call first):
  File "/home/me/data.py", line 4 in rows
  File "/venv/site-packages/tensorflow/python/data/ops/from_generator_op.py", line 1 in next
  File "/venv/site-packages/tensorflow/python/ops/script_ops.py", line 9 in __call__

"""
    + WAITS
)


class Clock:
    def __init__(self):
        self.time = 1000.0

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.time += seconds


class Worker:
    pid = 2**22 + 1  # more than there can be

    def __init__(self, code=None):
        self.code = code
        self.requested = []

    def poll(self):
        return self.code

    def ask(self, number):
        self.requested.append(number)


class Scene:
    def __init__(self, tmp_path, workers=2, timeout=60.0):
        self.clock = Clock()
        self.paths = AttemptPaths(run=tmp_path, attempt=0)
        self.paths.directory.mkdir(parents=True)
        self.handles = {rank: Worker() for rank in range(workers)}
        self.output = []
        self.watch = HangDetector(
            timeout=timeout,
            handles=self.handles,
            paths=self.paths,
            now=self.clock.now,
            sleep=self.clock.sleep,
            on_stall=self.output.append,
        )

    def passes(self, seconds):
        self.clock.time += seconds
        return self.watch.is_stuck()

    def beats(self, rank, phase, seconds=0.0, step=3, *, number=None, ahead=0.0):
        """A heartbeat, by a clock that is `ahead` of the launcher's."""
        with RecordWriter(records_path(self.paths.run, rank), clock=self.wall(ahead)) as writer:
            beat = {"phase": phase, "phase_seconds": seconds, "step": step, "epoch": 0}
            writer.write("heartbeat", phase_number=number or step, **beat)

    def looks(self):
        """The launcher sees these heartbeats for the first time."""
        assert not self.passes(6)

    def wall(self, ahead):
        return lambda: 1.7e9 + self.clock.time + ahead


def test_who_has_not_come_is_named_and_where(tmp_path):
    scene = Scene(tmp_path)
    scene.beats(0, "compute")
    scene.beats(1, "callbacks")
    scene.paths.stacks(0).write_text(WAITS)
    scene.paths.stacks(1).write_text(AWAY)
    scene.looks()
    scene.clock.time += 59
    assert not scene.watch.is_stuck()
    scene.clock.time += 6
    assert scene.watch.is_stuck()
    assert scene.watch.is_stuck(), "it stays so"
    first, worker_0, worker_1, last = scene.watch.verdict.splitlines()
    assert first == (
        "The run makes no progress: worker 1 never reached step 4: in a callback for 66 s; "
        "the other waits in the all-reduce."
    )
    assert worker_0 == (
        "Worker 0: in a step after step 3 of epoch 0 for 66 s; it waits in TensorFlow, called from "
        "/home/me/train.py:20, in <module>."
    )
    assert worker_1 == (
        "Worker 1: in a callback after step 3 of epoch 0 for 66 s; it is at /home/me/train.py:7, "
        "in on_train_batch_end."
    )
    assert "--hang-timeout" in last


def test_one_worker_that_moves_is_enough(tmp_path):
    scene = Scene(tmp_path)
    for rank in (0, 1):
        scene.beats(rank, "compute")
    scene.looks()
    assert not scene.passes(50)
    scene.beats(1, "compute", step=4)
    assert not scene.passes(50)
    assert not scene.passes(50)
    assert scene.passes(50)


def test_a_phase_that_continues_counts_from_its_beginning(tmp_path):
    scene = Scene(tmp_path)
    for rank in (0, 1):
        scene.beats(rank, "input")
    scene.looks()
    for rank in (0, 1):
        scene.beats(rank, "compute", seconds=40.0)
    assert not scene.passes(50), "the launcher sees them, 50 s after its last look"
    assert not scene.passes(15)
    assert scene.passes(10), "25 s after the heartbeat, and 65 s after the beginning"


def test_workers_that_have_ended_are_not_asked(tmp_path):
    scene = Scene(tmp_path)
    scene.beats(0, "compute")
    scene.looks()
    scene.handles[1].code = 0
    scene.clock.time += 100
    assert scene.watch.is_stuck()
    assert "Worker 1" not in scene.watch.verdict
    assert [worker.requested for worker in scene.handles.values()] == [[signal.SIGUSR2], []]


def test_a_worker_on_another_host_is_asked_there(tmp_path, monkeypatch):
    scene, sent = Scene(tmp_path), []
    wire = SimpleNamespace(is_lost=False, send=sent.append)
    home = SimpleNamespace(code_of=lambda channel, number: None)
    # Its process id there is this process's here.
    scene.handles[1] = RemoteWorker(home, wire, number=7, pid=os.getpid())
    killed = []
    monkeypatch.setattr(os, "kill", lambda *words: killed.append(words))
    for rank in (0, 1):
        scene.beats(rank, "compute")
    scene.looks()
    scene.clock.time += 100
    assert scene.watch.is_stuck()
    assert sent == [{"do": "signal", "number": 7, "signal": signal.SIGUSR2, "family": False}]
    assert killed == []


def test_a_worker_that_leaves_slowly_is_no_hang(tmp_path):
    scene = Scene(tmp_path)
    for rank in (0, 1):
        scene.beats(rank, "compute")
        with RecordWriter(records_path(tmp_path, rank), clock=scene.wall(-3600)) as writer:
            writer.write("worker_end", ok=True, error=None)
    scene.looks()
    scene.clock.time += 1e6
    assert not scene.watch.is_stuck()


def test_zero_never_ends_a_run(tmp_path):
    scene = Scene(tmp_path, timeout=0)
    scene.beats(0, "compute")
    scene.looks()
    scene.clock.time += 1e6
    assert not scene.watch.is_stuck()


def test_before_training_a_run_is_not_ended_and_the_wait_is_reported_once(tmp_path):
    scene = Scene(tmp_path)
    scene.beats(0, "start", step=None, number=1)
    scene.paths.stacks(0).write_text(AWAY)
    scene.looks()
    assert not scene.passes(50)
    assert scene.output == []
    assert not scene.passes(20)
    assert not scene.passes(1e6)
    (output,) = scene.output
    first, worker_0, worker_1, _ = output.splitlines()
    assert "No worker trains" in first
    assert "continues" in first
    assert worker_0.startswith("Worker 0: starting")
    assert "it is at /home/me/train.py:7" in worker_0
    assert worker_1.startswith("Worker 1: starting")
    # Worker 1 has not reported yet, and SIGUSR2 could end it.
    assert [worker.requested for worker in scene.handles.values()] == [[signal.SIGUSR2], []]


def test_after_something_new_another_wait_is_reported(tmp_path):
    scene = Scene(tmp_path, workers=1)
    scene.beats(0, "start", step=None, number=1)
    scene.looks()
    scene.passes(70)
    scene.beats(0, "idle", step=None, number=2)
    scene.looks()
    scene.passes(70)
    assert len(scene.output) == 2


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_a_clock_that_is_set_while_the_run_continues_ends_nothing(tmp_path, ahead):
    scene, off = Scene(tmp_path), 0.0
    for number in range(1, 60):
        off = ahead if number > 20 else 0.0
        for rank in (0, 1):
            scene.beats(rank, "compute", seconds=1.0, step=number, ahead=off)
        assert not scene.passes(6)
    assert scene.output == []


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_the_clock_of_a_host_that_is_off_hides_no_hang(tmp_path, ahead):
    scene = Scene(tmp_path)
    scene.beats(0, "compute")
    scene.beats(1, "callbacks", ahead=ahead)
    scene.paths.stacks(1).write_text(AWAY)
    scene.looks()
    for number in range(1, 6):
        # Worker 1 says again and again that it is where it was.
        scene.beats(1, "callbacks", seconds=10.0 * number, ahead=ahead)
        assert not scene.passes(10)
    assert scene.passes(12)
    assert "worker 1 never reached step 4: in a callback for 6" in scene.watch.verdict


def test_a_phase_that_begins_again_is_something_new(tmp_path):
    scene = Scene(tmp_path)
    for number in range(1, 30):
        scene.beats(0, "validation", number=number)
        assert not scene.passes(10)


def test_workers_that_were_stopped_together_with_the_launcher_are_left_alone(tmp_path):
    # The launcher's clock counts no time in which it was stopped; theirs does.
    scene = Scene(tmp_path)
    for rank in (0, 1):
        scene.beats(rank, "compute")
    scene.looks()
    for rank in (0, 1):
        scene.beats(rank, "compute", seconds=3605.0, ahead=3600.0)
    assert not scene.passes(50)
    for rank in (0, 1):
        scene.beats(rank, "compute", step=4, ahead=3600.0)
    assert not scene.passes(50)


def test_heartbeats_of_an_earlier_attempt_count_for_nothing(tmp_path):
    path = tmp_path / "worker-0.jsonl"
    with RecordWriter(path, clock=lambda: 9e9) as writer:
        writer.write("heartbeat", phase="compute", phase_seconds=0.0, step=3, epoch=0)
    reader = HeartbeatReader(path, now=100.0)
    assert reader.poll(1000.0) == at("start", 100.0)
    with RecordWriter(path, clock=lambda: 1.0) as writer:
        writer.write("heartbeat", phase="input", phase_seconds=0.0, step=None, epoch=None)
    assert reader.poll(1010.0) == at("input", 1010.0)
    assert reader.poll(1020.0) == at("input", 1010.0)


def test_a_worker_whose_other_records_fill_the_file_is_at_work(tmp_path):
    path = tmp_path / "worker-0.jsonl"
    reader = HeartbeatReader(path, now=100.0)
    with RecordWriter(path) as writer:
        writer.write("heartbeat", phase="compute", phase_seconds=0.0, step=3, epoch=0)
        assert reader.poll(110.0).since == 110.0
        writer.write("gradients", values={str(number): 0.5 for number in range(10_000)})
    assert reader.poll(500.0).since == 500.0


def test_without_heartbeats_the_flight_recorder_shows_progress(tmp_path):
    """A disk that is full takes no heartbeats; the flight recorder has its room already."""
    records, file = tmp_path / "worker-0.jsonl", tmp_path / "worker-0.flight"
    reader = HeartbeatReader(records, now=100.0, flight=file)
    with RecordWriter(records) as writer:
        writer.write("heartbeat", phase="compute", phase_seconds=0.0, step=3, epoch=0)
    recorder = FlightRecorder()
    recorder.open(file, rank=0, attempt=0, workers=1)
    recorder.phase("compute")
    assert reader.poll(110.0).since == 110.0
    assert reader.poll(120.0).since == 110.0
    recorder.phase("callbacks")
    assert reader.poll(130.0).since == 130.0
    assert reader.poll(140.0).since == 130.0
    recorder.close()


def test_what_cannot_be_read_is_passed_over(tmp_path):
    path = tmp_path / "worker-0.jsonl"
    assert last_heartbeat_in(path) is None
    good = {"v": 1, "t": 5.0, "kind": "heartbeat", "phase": "input", "step": None, "epoch": None}
    lines = [
        json.dumps(good),
        "[]",
        '{"kind":"heartbeat"}',
        '{"kind":"train_metrics"}',
        '{"t":3,"ki',
    ]
    path.write_text("\n".join(lines))
    beat = last_heartbeat_in(path)
    assert (beat.phase, beat.seconds, beat.phase_number, beat.t) == ("input", 0.0, None, 5.0)
    assert at("input", 5.0).activity == "waiting in next(iterator)"
    assert (at("input", 5.0).next_step, at("input", 5.0).after) == ("the first step", "")
    assert main_frames("") == []


def test_a_timeout_below_nothing_is_refused():
    with pytest.raises(ConfigurationError, match=r"--hang-timeout must be seconds.*found -1"):
        RunOptions(target="train.py", hang_timeout=-1)


def held(scene, *workers):
    """All make no progress for 64 s: (phase, stacks) each; the first line of what is said."""
    for rank, (phase, stacks) in enumerate(workers):
        scene.beats(rank, phase)
        scene.paths.stacks(rank).write_text(stacks)
    scene.looks()
    scene.clock.time += 63
    assert scene.watch.is_stuck()
    return scene.watch.verdict.splitlines()[0].removeprefix("The run makes no progress: ")


@pytest.mark.parametrize(
    ("workers", "says"),
    [
        (
            [("compute", WAITS), ("input", WAITS)],
            "worker 1 never reached step 4: waiting in next(iterator) for 64 s; the other "
            "waits in the all-reduce.",
        ),
        (
            [("compute", WAITS), ("compute", MAKES_DATA)],
            "worker 1 never reached step 4: waiting in next(iterator) for 64 s; the other "
            "waits in the all-reduce.",
        ),
        (
            [("compute", WAITS), ("idle", AWAY), ("compute", WAITS)],
            "worker 1 is outside of training after step 3 for 64 s; the others wait in the "
            "all-reduce.",
        ),
        (
            [("compute", WAITS), ("callbacks", AWAY), ("callbacks", AWAY)],
            "worker 1 never reached step 4: in a callback for 64 s, worker 2 never "
            "reached step 4: in a callback for 64 s; the other waits in the all-reduce.",
        ),
        (
            [("validation", WAITS), ("callbacks", AWAY)],
            "worker 1 never reached step 4: in a callback for 64 s; the other waits.",
        ),
        (
            [("compute", WAITS), ("compute", WAITS)],
            "no worker has started anything new for 64 s.",
        ),
    ],
)
def test_what_is_said_of_it(tmp_path, workers, says):
    assert held(Scene(tmp_path, workers=len(workers)), *workers) == says


def test_where_data_is_made_is_said(tmp_path):
    scene = Scene(tmp_path)
    # Two dumps: the one before shows the main thread last.
    held(scene, ("compute", WAITS), ("compute", MAKES_DATA + MAKES_DATA))
    assert "its data is being made at /home/me/data.py:4, in rows." in scene.watch.verdict


def trains(scene, steps=5):
    """Steps of half a second, one look after each ten."""
    for number in range(1, steps + 1):
        for rank in scene.handles:
            scene.beats(rank, "compute", step=10 * number)
        assert not scene.passes(5.1)


def test_a_stall_is_said_once_and_well_before_the_end(tmp_path):
    scene = Scene(tmp_path, timeout=600.0)
    trains(scene)
    scene.paths.stacks(0).write_text(WAITS)
    scene.paths.stacks(1).write_text(AWAY)
    scene.beats(0, "compute", step=50)
    scene.beats(1, "callbacks", step=50)
    for _ in range(3):
        assert not scene.passes(6)
    assert scene.output == []
    for _ in range(5):
        assert not scene.passes(6)
    (line,) = scene.output
    assert line.startswith("worker 1 never reached step 51: in a callback for 1")
    assert line.endswith("; the other waits in the all-reduce (a step usually takes 0.51 s)")
    trains(scene)
    assert len(scene.output) == 1
    assert not any(scene.passes(6) for _ in range(6))
    assert len(scene.output) == 2, "another stall is said again"


def test_a_stall_is_said_where_a_run_is_never_ended(tmp_path):
    scene = Scene(tmp_path, timeout=0)
    trains(scene)
    assert not any(scene.passes(6) for _ in range(5))
    assert len(scene.output) == 1


def test_slow_steps_are_no_stall(tmp_path):
    scene = Scene(tmp_path, timeout=600.0)
    for number in range(8):
        for rank in scene.handles:
            scene.beats(rank, "compute", step=number)
        scene.passes(14)
    assert not any(scene.passes(20) for _ in range(5))
    assert scene.output == []


def test_a_collective_that_times_out_shows_who_is_where(tmp_path):
    scene = Scene(tmp_path, workers=3)
    scene.handles[0].code = 1
    for rank in (1, 2):
        scene.beats(rank, "callbacks" if rank == 1 else "compute")
        scene.paths.stacks(rank).write_text(AWAY if rank == 1 else WAITS)
    scene.watch.capture_status()
    assert "Worker 1: in a callback after step 3 of epoch 0" in scene.watch.seen
    assert "Worker 0" not in scene.watch.seen
    assert "worker-*.stacks.txt" in scene.watch.seen


@pytest.mark.parametrize(
    ("looks", "timeout", "threshold"),
    [
        ([(0, 0), (10, 10), (20, 20), (30, 30)], 0, 20.0),
        ([(0, 0), (10, 100), (20, 200), (30, 300)], 0, 15.0),
        ([(0, 0), (10, 10), (20, 20), (30, 30)], 30, None),
        ([(0, 0), (10, 10), (20, 20)], 0, None),
        # One slow step among others does not change what is usual.
        ([(0, 0), (10, 10), (20, 20), (500, 21), (510, 31)], 0, 20.0),
        # Looks at which nothing was new, and a restored step, count for nothing.
        ([(0, 50), (5, 50), (10, 60), (20, 70), (21, 10), (31, 20)], 0, 20.0),
        ([(0, None), (10, None)], 0, None),
    ],
)
def test_the_stall_threshold_follows_step_times(looks, timeout, threshold):
    pace = StepTimeTracker()
    for now, step in looks:
        pace.take(now, [None, step])
    assert pace.stall_threshold(timeout) == threshold
