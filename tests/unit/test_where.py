"""Where each worker is or was, in words: from flight recorders as workers write them."""

import json
import os
import socket
import time

import pytest
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.errors import OptionError
from phalanx.flight.pages import MappedPages
from phalanx.flight.reading import read_flight
from phalanx.flight.ring import Ring
from phalanx.launch.last_flight import last_words, refined
from phalanx.launch.layout import AttemptPaths
from phalanx.launch.whereabouts import Position
from phalanx.records import RecordWriter, launcher_records_path
from phalanx.report.trace import trace, trace_of
from phalanx.report.where import look_where

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


def lines(run, now=1020.0, **options):
    return look_where(run, now=now, **options).lines


def test_a_worker_that_waits_for_its_batch_is_named(run):
    Worker(run, 0).step(40).step(41, how="open")
    Worker(run, 1).step(40).step(41, how="open")
    Worker(run, 2).step(40).step(41, came=False, how="open")
    assert lines(run)[1:] == [
        "worker 2 never reached step 41: waiting in next(iterator) for 19 s; "
        "the others wait in the all-reduce.",
        "Worker 0: in a step after step 40 of epoch 0 for 19 s.",
        "Worker 1: in a step after step 40 of epoch 0 for 19 s.",
        "Worker 2: waiting in next(iterator) after step 40 of epoch 0 for 19 s.",
    ]


def test_a_step_that_nobody_has_looked_at_yet_is_not_called_late(run):
    Worker(run, 0, alive=-1).step(41, came=False, how="open")
    Worker(run, 1, alive=-1).step(41, came=False, how="open")
    told = lines(run, now=1001.0)
    assert told[2] == "Worker 0: in a step after step 40 of epoch 0 for 1 s."
    assert told[1].startswith("no worker has begun anything new")


def test_of_several_steps_in_one_call_the_one_with_fewer_batches_is_late(run):
    Worker(run, 0).step(41, how="open", steps=10, done=5)
    Worker(run, 1).step(41, how="open", steps=10, done=4)
    verdict = lines(run)[1]
    assert verdict == (
        "worker 1 never reached step 44: waiting in next(iterator) for 20 s; "
        "the other waits in the all-reduce."
    )


def test_a_worker_that_took_a_step_fewer_is_named(run):
    Worker(run, 0).step(39).step(40, how="open")
    Worker(run, 1).step(39).waits_in("reading of the metrics", 38)
    verdict = lines(run)[1]
    assert verdict == (
        "worker 0 waits in the all-reduce after step 39; worker 1 waits in the reading of the "
        "metrics after step 38: worker 1 left out a step, or took one that the others left out."
    )


def test_a_script_that_has_come_to_its_end_is_named(run):
    Worker(run, 0).step(39).step(40, how="open")
    Worker(run, 1).step(39).phase("idle", step=39).waits_in("last meeting", 39)
    assert lines(run)[1] == (
        "worker 1 has come to its script's end after step 39 for 19 s; "
        "the other waits in the all-reduce."
    )


def test_a_worker_between_two_steps_may_wait_unseen(run):
    Worker(run, 0).step(39).phase("compute", step=39)
    Worker(run, 1).step(38).phase("idle", step=38).waits_in("last meeting", 38)
    assert lines(run)[1].startswith("worker 1 has come to its script's end after step 38 for ")
    Worker(run, 0).step(39).phase("callbacks", step=39)
    assert lines(run)[1].startswith("no worker has begun anything new for ")


def test_batches_of_different_form_are_told(run):
    Worker(run, 0).step(5, how="open", sizes=(9, 9))
    Worker(run, 1).step(5, how="open", sizes=(8, 8), form="x float32[?, 5], y float32[?, 1]")
    last = lines(run)[-1]
    assert last == (
        "Their last batches differ: worker 0: x float32[samples, 4], y float32[samples, 1]; "
        "worker 1: x float32[samples, 5], y float32[samples, 1]."
    )


def test_batches_may_differ_in_their_number_of_samples(run):
    Worker(run, 0).step(5, how="open", sizes=(9, 9))
    Worker(run, 1).step(5, how="open", sizes=(8, 8))
    assert not any("differ" in line for line in lines(run))


def test_a_process_that_is_gone_without_a_word(run):
    Worker(run, 0).step(7, how="open")
    Worker(run, 1, pid=2**22 + 1).step(7, how="open")  # more than there can be
    told = lines(run)
    assert told[1] == (
        "worker 1 is gone without a word: it was killed, in a step after step 6; "
        "the other waits in the all-reduce."
    )
    assert told[3].startswith("Worker 1: is gone without a word: it was killed; it was in a step")


def test_when_all_are_gone_their_last_moment_is_told(run):
    Worker(run, 0, pid=2**22 + 1).step(7, how="open")
    Worker(run, 1, pid=2**22 + 2).step(7, came=False, how="open")
    assert lines(run, now=9000.0)[1] == (
        "all workers are gone; before that worker 1 never reached step 7: waiting in "
        "next(iterator) for 20 s; the other waits in the all-reduce."
    )


def test_a_worker_on_a_lost_host_is_silent(run):
    Worker(run, 0).step(7, how="open")
    Worker(run, 1, host="another", alive=0).step(7, how="open")
    assert "worker 1 is silent for 20 s: stopped, or its host is lost" in lines(run)[1]


def test_who_failed_first_is_named_when_all_is_over(run):
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
                stopped=rank == 0,
                summary=f"it was killed by {signal}" if signal else None,
            )
    assert lines(run)[1] == (
        "worker 1 failed first: it was killed by SIGKILL (out of memory?); "
        "it was in a step after step 6, its last batch x float32[8, 4], y float32[8, 1]."
    )
    assert look_where(run, now=1020.0).to_json()["workers"][0]["gone"] is None  # but stopped by us


STACKS = """Current thread 0x00007f00 (most recent call first):
  File "/home/me/train.py", line 7 in load

"""


def test_stacks_are_told_of_the_place_where_a_worker_still_is(run):
    worker = Worker(run, 0)
    worker.step(7, how="open")
    stacks = AttemptPaths(run=run, attempt=0).stacks(0)
    stacks.write_text(STACKS)
    begun = read_flight(worker.file).events[-1].begin / 1e9
    told = {}
    for name, age in (("before", -5.0), ("since", 5.0)):
        os.utime(stacks, (begun + age, begun + age))
        told[name] = "train.py" in "\n".join(lines(run))
    assert told == {"before": False, "since": True}


def test_an_earlier_attempt_can_be_asked_for(run):
    Worker(run, 0, attempt=0).step(3, came=False, how="open")
    Worker(run, 1, attempt=0).step(3, how="open")
    Worker(run, 0, attempt=1).step(9, how="open")
    assert "attempt 1 of 0 to 1" in lines(run)[0]
    assert len(lines(run)) == 3
    assert "worker 0 never reached step 3" in lines(run, attempt=0)[1]
    with pytest.raises(OptionError, match=r"attempt 2 of the run first; it has 2"):
        look_where(run, attempt=2, now=0)


def test_a_run_of_which_nothing_is_written_is_refused(run):
    (run / "attempts" / "0").mkdir(parents=True)
    with pytest.raises(OptionError, match="no worker has begun"):
        look_where(run, now=0)
    with pytest.raises(OptionError, match="No flight recorder was found"):
        trace_of(run)


def test_the_command_finds_the_run_and_speaks_to_machines(run):
    begun = time.time() - 20
    Worker(run, 0, clock=Clock(begun)).step(41, how="open")
    Worker(run, 1, clock=Clock(begun)).step(41, came=False, how="open")
    home = str(run.parent)
    shown = CliRunner().invoke(app, ["debug", "where", "--run-dir", home])
    assert shown.exit_code == 0
    assert "worker 1 never reached step 41" in shown.output
    asked = CliRunner().invoke(app, ["debug", "where", "first", "--run-dir", home, "--json"])
    told = json.loads(asked.output)
    assert [worker["is_late"] for worker in told["workers"]] == [False, True]
    assert told["workers"][0]["batch"] == "x float32[8, 4], y float32[8, 1]"
    assert told["verdict"].startswith("worker 1 never reached step 41")


def test_what_a_failed_worker_did_is_told_in_a_line(run):
    paths = AttemptPaths(run=run, attempt=0)
    Worker(run, 0).step(40).step(41, how="open")
    Worker(run, 1).step(40).step(41, how="failed").phase("idle")
    ended = {0: 1004.0, 1: 1003.0}
    assert last_words(paths, ended, 1) == [
        "It was in a step after step 40, its last batch x float32[8, 4], y float32[8, 1]."
    ]
    Worker(run, 0).step(40).step(41, came=False, how="open", form="x int32[?]")
    assert last_words(paths, ended, 1) == [
        "Worker 0 never reached step 41: waiting in next(iterator) for 3 s; "
        "the other waits in the all-reduce."
    ]
    Worker(run, 1).phase("idle")
    assert last_words(paths, ended, 1) == []
    assert last_words(paths, ended, 2) == []


def test_a_heartbeat_is_refined_by_the_recorder(run):
    late = Worker(run, 0).step(41, came=False, how="open")
    beat = Position(phase="compute", since=1000.0, step=40, epoch=0)
    assert refined(beat, late.file).phase == "input"
    assert refined(beat, run / "absent") is beat
    saves = Position(phase="checkpoint", since=1000.0)
    assert refined(saves, Worker(run, 1).file) is saves


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
    begun, worker.clock.time = worker.open, worker.clock.time + 1
    worker.phase("idle")  # Its end; a worker that leaves says no more of what goes on.
    worker.ring.now(*begun)
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
    done = CliRunner().invoke(app, ["debug", "timeline", "--run-dir", home, "-o", str(file)])
    assert done.exit_code == 0
    assert by_name(json.loads(file.read_text())["traceEvents"], "step 1")
