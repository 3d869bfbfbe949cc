"""What `phalanx watch` makes of records: each worker's state at a given moment."""

import io

import pytest
from rich.console import Console

from made_run import BEGAN, make_run
from phalanx.launcher.worker_status import WorkerState
from phalanx.monitoring.event_log import RecordWriter, launcher_records_path, records_path
from phalanx.report.live import LiveRun, Watched
from phalanx.report.terminal_view import chosen, live_page
from phalanx.report.worker_state import run_state, state_of


class Made:
    """Two workers' records and the launcher's, written at given times."""

    def __init__(self, path):
        self.path, self.now = path, 0.0
        clock = lambda: self.now  # noqa: E731
        self.launcher = RecordWriter(launcher_records_path(path), clock=clock)
        self.workers = [RecordWriter(records_path(path, rank), clock=clock) for rank in (0, 1)]
        self.watched = Watched(path)

    def at(self, now, by, kind, /, **fields):
        self.now = now
        writer = self.launcher if by is None else self.workers[by]
        writer.write(kind, **fields)
        return self

    def both_start(self, now=0.0, attempt=0):
        for rank in (0, 1):
            self.at(now, rank, "worker_start", attempt=attempt)
            self.at(now, rank, "heartbeat", phase="compute", step=5, memory_bytes=1e9)
        return self

    def states(self, now):
        self.watched.update()
        run = self.watched.run
        return [state_of(worker, run, now).name for _, worker in sorted(run.workers.items())]

    def why(self, rank, now):
        self.watched.update()
        return state_of(self.watched.run.workers[rank], self.watched.run, now).reason


@pytest.fixture
def made(tmp_path):
    return Made(tmp_path / "made")


def test_running(made):
    assert made.both_start().states(3.0) == ["running", "running"]


def test_silent_after_some_missed_heartbeats(made):
    made.both_start().at(9.0, 0, "heartbeat", phase="compute", step=6)
    assert made.states(9.9) == ["running", "running"]
    assert made.states(12.0) == ["running", "unresponsive"]
    assert made.why(1, 12.0) == "no report for 12 s"
    made.at(13.0, 1, "heartbeat", step=6)
    assert made.states(14.0) == ["running", "running"]


def test_a_straggler_is_slow_until_it_is_ended(made):
    fields = {"step": 9, "rank": 1, "since_step": 4, "factor": 1.8, "cause": "input"}
    made.both_start().at(1.0, 0, "straggler", resolved=False, **fields)
    assert made.states(2.0) == ["running", "slow"]
    assert made.why(1, 2.0) == "takes 1.8 times as long as the others since step 4 (input)"
    made.at(3.0, 0, "straggler", resolved=True, **fields)
    assert made.states(4.0) == ["running", "running"]


def test_news_about_a_worker_is_no_sign_of_its_life(made):
    made.both_start().at(
        11.0, 0, "straggler", step=9, rank=1, factor=2.0, cause="input", resolved=False
    )
    assert made.states(12.0) == ["running", "unresponsive"]


def test_a_phase_that_does_not_end_is_slow(made):
    made.both_start().at(40.0, 0, "heartbeat", phase="input", phase_seconds=38.0)
    made.at(40.0, 1, "heartbeat", phase="validation", phase_seconds=38.0)
    assert made.states(41.0) == ["slow", "running"]
    assert made.why(0, 41.0) == "in input for 38 s"


def test_dead_with_the_launchers_word(made):
    made.both_start()
    made.at(2.0, 1, "worker_end", ok=False, error="ValueError: bad")
    assert made.states(3.0) == ["running", "failed"]
    assert made.why(1, 3.0) == "ValueError: bad"
    exit_ = {
        "attempt": 0,
        "rank": 1,
        "signal": "SIGKILL",
        "terminated_by_launcher": False,
        "summary": "killed",
    }
    made.at(3.0, None, "worker_exit", code=-9, **exit_)
    assert made.why(1, 4.0) == "killed (SIGKILL)"
    made.at(
        4.0,
        None,
        "worker_exit",
        attempt=0,
        rank=0,
        code=-15,
        signal="SIGTERM",
        terminated_by_launcher=True,
    )
    assert made.states(5.0) == ["stopped", "failed"]


def test_a_worker_that_the_launcher_stopped_has_not_failed(made):
    made.both_start().at(2.0, 0, "worker_end", ok=False, error="a peer has ended")
    made.at(
        3.0,
        None,
        "worker_exit",
        attempt=0,
        rank=0,
        code=1,
        signal=None,
        terminated_by_launcher=True,
    )
    assert made.states(4.0)[0] == "stopped"


def test_ended(made):
    made.both_start()
    made.at(1.0, 0, "worker_end", ok=True)
    made.at(
        1.0,
        None,
        "worker_exit",
        attempt=0,
        rank=1,
        code=0,
        signal=None,
        terminated_by_launcher=False,
    )
    assert made.states(99.0) == ["ended", "ended"]


def test_saved_and_stopped_is_no_trouble(made):
    made.both_start()
    for rank, stopped in ((0, True), (1, False)):
        made.at(
            1.0,
            None,
            "worker_exit",
            attempt=0,
            rank=rank,
            code=75,
            signal=None,
            terminated_by_launcher=stopped,
        )
    made.at(2.0, None, "run_end", exit_code=75)
    assert made.states(99.0) == ["ended", "ended"]
    assert made.why(0, 99.0) == "saved and stopped"
    assert run_state(made.watched.run, 99.0) == "saved and stopped, to be resumed"


def test_a_run_that_has_ended_leaves_no_worker_silent(made):
    made.both_start().at(1.0, None, "run_end", exit_code=0)
    assert made.states(99.0) == ["ended", "ended"]
    assert made.watched.is_over


def test_an_old_run_ends_by_its_run_file(made):
    made.both_start()
    (made.path / "run.json").write_text('{"result": {"exit_code": 3, "report": "broken"}}')
    assert made.states(99.0) == ["stopped", "stopped"]
    assert made.watched.is_over
    assert run_state(made.watched.run, 99.0) == "failed, exit code 3"


def test_another_attempt_restarts(made):
    made.both_start().at(1.0, 0, "train_metrics", step=9, epoch=0, logs={"loss": 0.5})
    made.at(
        2.0,
        None,
        "worker_exit",
        attempt=0,
        rank=1,
        code=1,
        signal=None,
        terminated_by_launcher=False,
    )
    assert made.states(3.0) == ["running", "failed"]
    made.at(4.0, None, "restart", attempt=1, rank=1, cause="it failed", seconds=1.0)
    made.both_start(5.0, attempt=1)
    assert made.states(6.0) == ["running", "running"]
    assert made.watched.run.workers[0].loss is None
    assert "attempt 1" in page_of(made, 6.0)


def test_a_late_record_of_an_old_attempt_changes_nothing(made):
    made.both_start(5.0, attempt=1)
    made.at(
        6.0,
        None,
        "worker_exit",
        attempt=0,
        rank=1,
        code=1,
        signal=None,
        terminated_by_launcher=False,
    )
    assert made.states(7.0) == ["running", "running"]


def test_the_states_of_the_run(made):
    assert run_state(LiveRun(), 0.0) == "nothing recorded yet"
    made.both_start().states(1.0)
    assert run_state(made.watched.run, 1.0) == "running"
    assert run_state(made.watched.run, 60.0) == "unresponsive: it hangs, or its launcher was killed"


def page_of(made, now, **options):
    console = Console(file=io.StringIO(), width=options.get("width", 120))
    made.watched.update()
    console.print(
        live_page(made.watched.run, name="made", now=now, damages=made.watched.damages, **options)
    )
    return console.file.getvalue()


def test_the_table_has_what_a_worker_does(made):
    made.both_start()
    made.at(1.0, 0, "fit_start", fit=0, epochs=2, steps=10, model="cnn", optimizer="Adam")
    made.at(
        1.0,
        0,
        "train_metrics",
        step=1200,
        epoch=1,
        logs={"loss": 0.5, "auc": "nan"},
        learning_rate=0.1,
    )
    for rank in (0, 1):
        made.at(
            1.5, rank, "throughput", step=1200, samples_per_second=3100.0,
            step_seconds={"p50": 0.02}, memory_bytes=2e9,
        )  # fmt: skip
        values = {"gradients/norm": 1.5 + rank}
        made.at(1.5, rank, "gradients", run=f"worker-{rank}", step=1200, values=values)
    made.at(1.5, 0, "gradients", run="global", step=1200, values={"gradients/norm": 1.25})
    text = page_of(made, 2.5)
    lines = [line.split() for line in text.splitlines()]
    assert ["0", "running", "compute", "1,200", "1", "0.5", "3100", "20", "ms", "1.5", "2", "GB",
            "1", "s", "ago"] in lines  # fmt: skip
    assert ["1", "running", "compute", "1,200", "-", "-", "3100", "20", "ms", "2.5", "2", "GB",
            "1", "s", "ago"] in lines  # fmt: skip
    assert "latest      loss 0.5  auc nan  learning rate 0.1  gradient norm 1.25" in text
    assert "cnn, Adam, 2 epochs, 10 steps each" in text


@pytest.mark.parametrize("width", [80, 120])
def test_every_column_has_its_room(made, width):
    made.both_start()
    head = next(line for line in page_of(made, 1.0, width=width).splitlines() if "rank" in line)
    columns = ["rank", "state", "step", "epoch", "loss", "samples/s", "a", "step"]
    columns += ["gradient", "memory", "seen"]
    assert [each for each in head.split() if each != "doing"] == columns
    assert ("doing" in head) == (width > 80)


def test_trouble_is_said_in_words_and_colour(made):
    made.both_start()
    made.at(1.0, None, "worker_exit", attempt=0, rank=1, code=1, signal=None,
            terminated_by_launcher=False, summary="MemoryError: [bold]no[/bold]")  # fmt: skip
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system="standard")
    made.watched.update()
    console.print(live_page(made.watched.run, name="made", now=2.0))
    text = console.file.getvalue()
    assert "worker 1 failed: MemoryError: [bold]no[/bold] (exit code 1)" in text
    assert "\x1b[1;37;41m" in text  # White on red.


def test_when_not_all_fit_those_in_trouble_are_shown():
    standings = {rank: WorkerState(name="running") for rank in range(100)}
    standings[70] = WorkerState(name="slow")
    standings[90] = WorkerState(name="failed")
    assert chosen(standings, 4) == [0, 1, 70, 90]
    assert chosen(standings, None) == list(range(100))
    assert chosen(standings, -3) == [70]


def test_the_others_are_counted(made):
    made.both_start()
    assert "and 1 more worker\n" in page_of(made, 1.0, height=10)


def test_what_happened_and_what_is_damaged_is_said(made):
    made.both_start()
    made.at(61.0, 0, "checkpoint", step=9, path="a/b", bytes=2_000_000, seconds=0.5)
    with records_path(made.path, 1).open("ab") as file:
        file.write(b'broken\n{"v":1,"t":3')
    text = page_of(made, 62.0)
    assert "after 1 min 1 s: checkpoint: step 9, a/b, 2 MB, 500 ms" in text
    assert "worker-1.jsonl: line 3 is damaged and left out." in text


def test_the_made_run_at_its_end(tmp_path):
    watched = Watched(make_run(tmp_path))
    watched.update()
    assert watched.is_over
    states = [state_of(w, watched.run, BEGAN + 99).name for w in watched.run.workers.values()]
    assert states == ["ended"] * 3
    assert [type(each).__name__ for each in watched.run.notable].count("Restart") == 1


@pytest.mark.parametrize("off", [-3600.0, 3600.0])
def test_a_reader_judges_silence_by_its_own_clock(tmp_path, off):
    clock = [5000.0]
    watched = Watched(tmp_path)
    writer = RecordWriter(records_path(tmp_path, 0), clock=lambda: clock[0] + off)

    def state(beats):
        clock[0] += 5.0
        if beats:
            writer.write("heartbeat", phase="compute", phase_seconds=0.0, step=1, epoch=0)
        watched.update(clock[0])
        return state_of(watched.run.workers[0], watched.run, clock[0]).name

    assert state(beats=True) == ("unresponsive" if off < 0 else "running"), "the first look"
    assert [state(beats=True) for _ in range(4)] == ["running"] * 4
    assert [state(beats=False) for _ in range(3)] == ["running", "running", "unresponsive"]
