"""Where each worker is or was, in words: from flight recorders as workers write them."""

import json
import os
import socket
import time

import pytest
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.errors import ConfigurationError
from phalanx.launcher.run_layout import AttemptPaths
from phalanx.launcher.worker_diagnosis import failure_context, merge_flight_status
from phalanx.launcher.worker_status import WorkerProgress
from phalanx.monitoring.event_log import RecordWriter, launcher_records_path
from phalanx.monitoring.flight_format import NOTHING
from phalanx.monitoring.flight_reader import read_flight
from phalanx.monitoring.flight_ring import Ring
from phalanx.monitoring.mapped_pages import MappedPages
from phalanx.report.perfetto import trace, trace_of
from phalanx.report.run_status import read_status

HERE = socket.gethostname()
BATCH = "x float32[?, 4], y float32[?, 1]"


class Clock:
    def __init__(self, time=1000.0):
        self.time = time

    def __call__(self):
        return int(self.time * 1e9)


class Worker:
    """Writes a flight recorder as a worker does."""

    def __init__(self, run, rank, *, attempt=0, clock=None, pid=None, host=HERE, alive=20):
        paths = AttemptPaths(run=run, attempt=attempt)
        paths.directory.mkdir(parents=True, exist_ok=True)
        self.clock = clock or Clock()
        self.file = paths.flight(rank)
        self.ring = Ring(MappedPages(self.file), clock=self.clock)
        self.ring.introduce(
            rank=rank, attempt=attempt, workers=3, pid=pid or os.getpid(), host=host
        )
        self.clock.time += alive
        self.ring.alive()
        self.clock.time -= alive
        self.open = None
        self.phase("compute")

    def phase(self, name, step=-1, epoch=-1):
        if self.open is not None:
            begin, *rest = self.open[1:]
            self.ring.phase(self.open[0], begin, self.clock(), *rest)
        self.open = (self.ring.text(name), self.clock(), step, epoch)
        self.ring.now(*self.open)
        return self

    def step(self, number, *, came=True, how="done", sizes=(8, 8), form=BATCH, steps=1, done=1):
        event = self.ring.begin("train", 0, step=number, epoch=0, steps=steps, done=0)
        if came:
            event.done, event.came = done, self.clock()
            event.signature, event.dimensions = self.ring.text(form), sizes
        self.ring.write(event)
        self.clock.time += 1
        if how != "open":
            self.ring.end(event, how)
        return self

    def waits_in(self, name, step):
        self.ring.begin("collective", self.ring.text(name), step=step, epoch=0, size=16)
        return self


@pytest.fixture
def run(tmp_path):
    home = tmp_path / "runs" / "first"
    (home / "records").mkdir(parents=True)
    return home


NO_ONE = 2**22 + 1  # more than a process id can be
SCENES = {}


NOW = 1020.0


def at_once(seconds):
    pass


def scene(write=None, *, now=NOW):
    if write is None:
        return lambda write: scene(write, now=now)
    SCENES[write.__name__.replace("_", " ")] = write, now
    return write


@scene
def a_worker_waits_for_its_batch(run):
    Worker(run, 0).step(40).step(41, how="open")
    Worker(run, 1).step(40).step(41, how="open")
    Worker(run, 2).step(40).step(41, came=False, how="open")


@scene(now=1001.0)
def no_one_has_looked_for_the_batches_of_a_step_yet(run):
    Worker(run, 0, alive=-1).step(41, came=False, how="open")
    Worker(run, 1, alive=-1).step(41, came=False, how="open")


@scene
def of_several_steps_in_one_call_one_has_fewer_batches(run):
    Worker(run, 0).step(41, how="open", steps=10, done=5)
    Worker(run, 1).step(41, how="open", steps=10, done=4)


@scene
def a_worker_took_a_step_fewer(run):
    Worker(run, 0).step(39).step(40, how="open")
    Worker(run, 1).step(39).waits_in("reading of the metrics", 38)


@scene
def a_script_has_come_to_its_end(run):
    Worker(run, 0).step(39).step(40, how="open")
    Worker(run, 1).step(39).phase("idle", step=39).waits_in("exit barrier", 39)


@scene
def a_script_has_come_to_its_end_while_the_other_is_between_two_steps(run):
    Worker(run, 0).step(39).phase("compute", step=39)
    Worker(run, 1).step(38).phase("idle", step=38).waits_in("exit barrier", 38)


@scene
def a_script_has_come_to_its_end_while_the_other_is_in_a_callback(run):
    Worker(run, 0).step(39).phase("callbacks", step=39)
    Worker(run, 1).step(38).phase("idle", step=38).waits_in("exit barrier", 38)


@scene
def the_last_batches_are_of_different_form(run):
    Worker(run, 0).step(5, how="open", sizes=(9, 9))
    Worker(run, 1).step(5, how="open", sizes=(8, 8), form="x float32[?, 5], y float32[?, 1]")


@scene
def the_last_batches_differ_in_their_number_of_samples(run):
    Worker(run, 0).step(5, how="open", sizes=(9, 9))
    Worker(run, 1).step(5, how="open", sizes=(8, 8))


@scene
def a_process_ended_without_a_report(run):
    Worker(run, 0).step(7, how="open")
    Worker(run, 1, pid=NO_ONE).step(7, how="open")


@scene(now=9000.0)
def all_processes_have_ended(run):
    Worker(run, 0, pid=NO_ONE).step(7, how="open")
    Worker(run, 1, pid=NO_ONE + 1).step(7, came=False, how="open")


@scene
def a_worker_is_on_a_lost_host(run):
    Worker(run, 0).step(7, how="open")
    Worker(run, 1, host="another", alive=0).step(7, how="open")


@scene
def one_failed_and_the_launcher_stopped_the_other(run):
    Worker(run, 0).step(7, how="failed").phase("idle")
    Worker(run, 1).step(7, how="open")
    with RecordWriter(launcher_records_path(run), clock=lambda: 1003.0) as launcher:
        for rank, signal in ((1, "SIGKILL"), (0, None)):
            launcher.write(
                "worker_exit",
                attempt=0,
                rank=rank,
                code=-9 if signal else 1,
                signal=signal,
                terminated_by_launcher=rank == 0,
                summary=f"it was killed by {signal}" if signal else None,
            )


def row(phase, step, seconds, **more):
    fields = {"collective": None, "is_late": False, "is_absent": False, **more}
    return {"phase": phase, "step": step, "seconds": seconds, **fields}


LATE, DEAD = {"is_late": True}, {"is_late": True, "is_absent": True}
ENDED = {"is_late": True, "collective": "exit barrier"}
EXPECTED = {
    "a worker waits for its batch": [
        row("compute", 40, 19), row("compute", 40, 19), row("input", 40, 19, **LATE),
    ],
    "no one has looked for the batches of a step yet": [row("compute", 40, 1)] * 2,
    "of several steps in one call one has fewer batches": [
        row("compute", 44, 20), row("compute", 43, 20),
    ],
    "a worker took a step fewer": [
        row("compute", 39, 19), row("compute", 38, 19, collective="reading of the metrics"),
    ],
    "a script has come to its end": [row("compute", 39, 19), row("idle", 39, 19, **ENDED)],
    "a script has come to its end while the other is between two steps": [
        row("compute", 39, 19), row("idle", 38, 19, **ENDED),
    ],
    "a script has come to its end while the other is in a callback": [
        row("callbacks", 39, 19, **LATE), row("idle", 38, 19, **ENDED),
    ],
    "the last batches are of different form": [row("compute", 4, 20)] * 2,
    "the last batches differ in their number of samples": [row("compute", 4, 20)] * 2,
    "a process ended without a report": [row("compute", 6, 20), row("compute", 6, 20, **DEAD)],
    "all processes have ended": [row("compute", 6, 20, **DEAD), row("input", 6, 20, **DEAD)],
    "a worker is on a lost host": [row("compute", 6, 20), row("compute", 6, 0, **DEAD)],
    # A worker that the launcher ended has not ended of its own.
    "one failed and the launcher stopped the other": [
        row("compute", 6, 3), row("compute", 6, 3, **DEAD),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", SCENES)
def test_the_status_of_each_worker(run, name):
    write, now = SCENES[name]
    write(run)
    status = read_status(run, now=now, sleep=at_once)
    reported = status.to_json()
    absent = {rank: each.state.is_absent for rank, each in status.workers.items()}
    found = [{**each, "is_absent": absent[each["rank"]]} for each in reported["workers"]]
    assert [{key: each[key] for key in row("", 0, 0)} for each in found] == EXPECTED[name]
    assert (reported["batches_differ"] is not None) == (
        name == "the last batches are of different form"
    )


def test_the_status_as_text(tmp_path, snapshot):
    page = []
    for name, (write, now) in SCENES.items():
        run = tmp_path / name
        run.mkdir()
        write(run)
        page += [
            f"When {name}:",
            "",
            *read_status(run, now=now, sleep=at_once).lines,
            "",
        ]
    snapshot("status", "\n".join(page))


@pytest.mark.parametrize("off", [-3600.0, 3600.0])
def test_a_worker_whose_clock_is_off_is_judged_by_a_second_look(run, off):
    lives = Worker(run, 0, clock=Clock(1000.0 + off)).step(41, how="open")
    Worker(run, 1, clock=Clock(1000.0 + off), host="far").step(41, how="open")
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        lives.clock.time += 21.0 + seconds
        lives.ring.alive()

    status = read_status(run, now=NOW, sleep=sleep)
    assert [each.state.is_absent for each in status.workers.values()] == [False, True]
    assert "in a step after step 40 of epoch 0 for 20 s" in status.lines[2]
    silent = "no report for 1 h 0 min" if off < 0 else "is unresponsive (no report): stopped"
    assert silent in status.lines[3]
    assert len(slept) == 1


STACKS = """Current thread 0x00007f00 (most recent call first):
  File "/home/me/train.py", line 7 in load

"""


def test_stacks_of_an_earlier_phase_are_ignored(run):
    worker = Worker(run, 0)
    worker.step(7, how="open")
    stacks = AttemptPaths(run=run, attempt=0).stacks(0)
    stacks.write_text(STACKS)
    started = read_flight(worker.file).events[-1].begin / 1e9
    reported = {}
    for name, age in (("before", -5.0), ("since", 5.0)):
        os.utime(stacks, (started + age, started + age))
        reported[name] = read_status(run, now=NOW).workers[0].location
    assert reported == {"before": "", "since": "it is at /home/me/train.py:7, in load"}


def test_an_earlier_attempt_can_be_asked_for(run):
    Worker(run, 0, attempt=0).step(3, came=False, how="open")
    Worker(run, 1, attempt=0).step(3, how="open")
    Worker(run, 0, attempt=1).step(9, how="open")
    last, first = read_status(run, now=NOW), read_status(run, attempt=0, now=NOW)
    assert (last.attempt, last.attempts, list(last.workers)) == (1, 2, [0])
    assert (first.attempt, first.attempts, list(first.workers)) == (0, 2, [0, 1])
    assert [each.is_late for each in first.workers.values()] == [True, False]
    assert "attempt 1 of 0 to 1" in last.lines[0]
    with pytest.raises(ConfigurationError, match=r"attempt 2 of the run first; it has 2"):
        read_status(run, attempt=2, now=0)


def test_a_run_of_which_nothing_is_written_is_refused(run):
    (run / "attempts" / "0").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="no worker has started"):
        read_status(run, now=0)
    with pytest.raises(ConfigurationError, match="No flight recorder was found"):
        trace_of(run)


def test_the_command_finds_the_run_and_speaks_to_machines(run):
    started = time.time() - 20
    Worker(run, 0, clock=Clock(started)).step(41, how="open")
    Worker(run, 1, clock=Clock(started)).step(41, came=False, how="open")
    home = str(run.parent)
    shown = CliRunner().invoke(app, ["debug", "status", "--run-dir", home])
    assert shown.exit_code == 0
    requested = CliRunner().invoke(app, ["debug", "status", "first", "--run-dir", home, "--json"])
    reported = json.loads(requested.output)
    assert [worker["is_late"] for worker in reported["workers"]] == [False, True]
    assert reported["workers"][0]["batch"] == "x float32[8, 4], y float32[8, 1]"
    assert reported["verdict"].startswith("worker 1 ")
    assert "\nworker 1 " in shown.output


def test_what_a_failed_worker_did_is_reported_in_a_line(run, snapshot):
    paths = AttemptPaths(run=run, attempt=0)
    Worker(run, 0, alive=4).step(40).step(41, how="open")
    Worker(run, 1, alive=4).step(40).step(41, how="failed").phase("idle")
    page = failure_context(paths, [0, 1], 1)
    Worker(run, 0, alive=4).step(40).step(41, came=False, how="open", form="x int32[?]")
    page += failure_context(paths, [0, 1], 1)
    snapshot("failure_context", "\n".join(page))
    Worker(run, 1).phase("idle")
    assert failure_context(paths, [0, 1], 1) == []
    assert failure_context(paths, [0, 1], 2) == []


def test_a_step_that_failed_before_its_batch_was_asked_for_has_its_context(run):
    paths = AttemptPaths(run=run, attempt=0)
    Worker(run, 0).step(40).step(41, how="open")
    Worker(run, 1).step(41, how="failed", done=NOTHING, form="x int32[?]").phase("idle")
    (_, differ) = failure_context(paths, [0, 1], 1)
    assert differ.startswith("Their last batches differ: worker 0")


def test_collectives_inside_a_failed_step_do_not_hide_it(run):
    paths = AttemptPaths(run=run, attempt=0)
    Worker(run, 0).step(41, how="open")
    one = Worker(run, 1)
    event = one.ring.begin("train", 0, step=41, epoch=0, steps=1, done=1)
    event.came, event.signature, event.dimensions = one.clock(), one.ring.text("x int32[?]"), (8,)
    one.ring.write(event)
    inner = one.ring.begin("collective", one.ring.text("gather"), step=NOTHING, epoch=NOTHING)
    one.ring.end(inner, "done")
    one.ring.end(event, "failed")
    one.phase("idle")
    (line, differ) = failure_context(paths, [0, 1], 1)
    assert "step 40" in line
    assert differ.startswith("Their last batches differ")


def test_the_last_batch_is_of_the_fit_that_failed(run):
    paths = AttemptPaths(run=run, attempt=0)
    Worker(run, 0).step(40).phase("idle").phase("compute").step(1, came=False, how="failed")
    Worker(run, 1).step(40).phase("idle").phase("compute").step(1, form="x int32[?]", how="failed")
    for failed in (0, 1):
        reported = "\n".join(failure_context(paths, [0, 1], failed))
        assert "float32" not in reported
        assert "differ" not in reported
    one = Worker(run, 0).step(40).phase("idle").phase("compute").step(1, how="failed")
    one.phase("idle").phase("idle")
    reported = failure_context(paths, [0, 1], 0)
    assert reported[1:] == [
        "Their last batches differ: worker 0: x float32[samples, 4], y float32[samples, 1]; "
        "worker 1: x int32[samples]."
    ]


def test_a_heartbeat_is_refined_by_the_recorder(run):
    late = Worker(run, 0).step(41, came=False, how="open")
    beat = WorkerProgress(phase="compute", since=5.0, step=40, epoch=0)
    # The recorder's clock read 1000 when the step began, and 1020 at its last sign of life.
    refined = merge_flight_status(beat, late.file, now=30.0, last_heartbeat=28.0)
    assert (refined.phase, refined.since) == ("input", 30.0 - 20.0 - 2.0)
    assert merge_flight_status(beat, late.file, now=20.0, last_heartbeat=20.0).since == 5.0
    assert merge_flight_status(beat, run / "absent", now=30.0, last_heartbeat=28.0) is beat
    saves = WorkerProgress(phase="checkpoint", since=5.0)
    assert merge_flight_status(saves, Worker(run, 1).file, now=30.0, last_heartbeat=28.0) is saves


def by_name(events, name):
    return [event for event in events if event["name"] == name]


def test_the_trace_has_a_process_for_each_worker_and_microseconds(run):
    for rank in (0, 1):
        Worker(run, rank).step(1).step(2).phase("callbacks").waits_in("gather", 2)
    events = trace_of(run)["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    for event in events:
        assert {"name", "ph", "pid", "tid", "args"} <= event.keys()
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
    times = [event["ts"] for event in events if event["ph"] == "X"]
    assert times == sorted(times)
    first, second = by_name(events, "step 2")
    assert (first["pid"], second["pid"]) == (0, 1)
    assert (first["ts"], first["dur"]) == (1e6, 1e6)
    assert first["args"]["batch"] == "x float32[8, 4], y float32[8, 1]"
    assert len(by_name(events, "compute and all-reduce")) == 4
    (open_gather, _) = by_name(events, "gather")
    assert open_gather["args"]["ended"] == "open"
    assert open_gather["args"]["bytes"] == 16
    names = [e["args"]["name"] for e in by_name(events, "process_name")]
    assert names == [f"worker {rank} ({HERE})" for rank in (0, 1)]
    order = {e["pid"]: e["args"]["sort_index"] for e in by_name(events, "process_sort_index")}
    assert order == {0: 0, 1: 1}


def test_a_phase_that_has_ended_is_in_the_trace_once(run):
    worker = Worker(run, 0).step(1).phase("idle")
    started, worker.clock.time = worker.open, worker.clock.time + 1
    worker.phase("idle")  # Its end; a worker that leaves says no more of what continues.
    worker.ring.now(*started)
    worker.ring.alive(ended=True)
    events = trace_of(run)["traceEvents"]
    assert len(by_name(events, "compute")) == len(by_name(events, "outside of training")) == 1
    assert by_name(events, "outside of training")[0]["dur"] == 1e6


def test_no_thread_of_the_trace_has_the_number_of_its_process(run):
    for rank in range(31):  # Perfetto would put it above the others, as the main thread.
        Worker(run, rank).step(1)
    events = [e for e in trace_of(run)["traceEvents"] if e["ph"] == "X"]
    assert all(event["tid"] != event["pid"] for event in events)
    threads = {event["tid"]: event["pid"] for event in events}
    assert set(threads.items()) == {(event["tid"], event["pid"]) for event in events}


def test_a_batch_that_was_there_leaves_no_slice_without_length(run):
    Worker(run, 0).step(1)
    events = trace_of(run)["traceEvents"]
    assert by_name(events, "input") == []
    assert by_name(events, "compute and all-reduce")[0]["dur"] == 1e6


def test_slices_of_one_track_lie_within_each_other(run):
    Worker(run, 0).step(1).step(2, steps=4, done=4).step(6, came=False, how="open")
    events = [e for e in trace_of(run)["traceEvents"] if e["ph"] == "X"]
    open_until = {}
    for event in events:  # in the order of their begin, the longest first
        stack = open_until.setdefault((event["pid"], event["tid"]), [])
        end = event["ts"] + event["dur"]
        while stack and stack[-1] <= event["ts"]:
            stack.pop()
        assert not stack or end <= stack[-1]
        stack.append(end)
    assert by_name(events, "steps 2 to 5")
    (waits,) = by_name(events, "input")
    assert (waits["ts"], waits["dur"]) == (by_name(events, "step 6")[0]["ts"], 18e6)


def test_clocks_of_hosts_are_set_by_the_steps_that_both_ended(run):
    Worker(run, 0, clock=Clock(1000)).step(1).step(2)
    Worker(run, 1, clock=Clock(1250), host="another").step(1).step(2)
    made = trace([read_flight(file) for file in sorted(run.glob("attempts/0/*.flight"))])
    first, second = by_name(made["traceEvents"], "step 2")
    assert first["ts"] == second["ts"]
    assert made["otherData"]["clocks"]["another"] == "+250000.000 ms"


def test_the_timeline_is_written_where_asked(run, tmp_path):
    Worker(run, 0).step(1)
    home, file = str(run.parent), tmp_path / "trace.json"
    done = CliRunner().invoke(app, ["debug", "trace", "--run-dir", home, "-o", str(file)])
    assert done.exit_code == 0
    assert by_name(json.loads(file.read_text())["traceEvents"], "step 1")
