"""What trackers get of a run: each metric once, whatever fails in between."""

import json
import logging

import pytest

from made_run import BEGAN, FAILS_AT, RESUMES_AT, Clock, make_run
from phalanx.errors import ConfigurationError, LaunchError, TrackerError
from phalanx.launcher import trackers
from phalanx.launcher.trackers import TrackerProcesses, check_installed, parse_trackers, state_path
from phalanx.monitoring.event_log import RecordWriter, launcher_records_path, records_path
from phalanx.monitoring.events import EpochMetrics, FitStart, ThroughputEvent, TrainMetrics
from phalanx.trackers.__main__ import RedactingFormatter
from phalanx.trackers.run_config import run_config, script_arguments
from phalanx.trackers.run_metrics import RunMetrics
from phalanx.trackers.sender import LONGEST_WAIT, Sender, wait_after


class Server:
    """A tracker's server: what has arrived, whether it is up, and how much of it is safe."""

    def __init__(self):
        self.is_up = True
        self.is_safe = True  # at once; else when a run is finished
        self.points = []
        self.buffered = []
        self.facts = {}
        self.files = []
        self.statuses = []
        self.starts = []
        self.fails_after = None  # points

    def make(self):
        return Client(self)

    def series(self):
        found = {}
        for point in self.points:
            for name, value in point.values.items():
                found.setdefault(name, []).append((point.step, value))
        return found

    def check(self):
        if not self.is_up:
            raise ConnectionError("refused")


class Client:
    place = "here"

    def __init__(self, server):
        self.server = server

    def start(self, run):
        self.server.check()
        self.server.starts.append(run)
        return run.tracker_id or "run-1"

    def log(self, points):
        self.server.check()
        for point in points:
            if self.server.fails_after == 0:
                self.server.fails_after = None
                raise ConnectionError("lost on the way")
            if self.server.fails_after is not None:
                self.server.fails_after -= 1
            (self.server.points if self.server.is_safe else self.server.buffered).append(point)

    def describe(self, facts):
        self.server.check()
        self.server.facts.update(facts)

    def log_artifact(self, path):
        self.server.files.append(path.read_bytes())

    def flush(self):
        return self.server.is_safe

    def finish(self, status):
        self.server.check()
        self.server.points += self.server.buffered
        self.server.buffered = []
        self.server.statuses.append(status)


@pytest.fixture
def server():
    return Server()


def send(run, server, **options):
    return Sender(
        name="wandb", run_dir=run, make=server.make, **{"follows": False, **options}
    ).run()


def steps_once(server):
    """Every series has each step once, and in order."""
    for name, points in server.series().items():
        steps = [step for step, _ in points]
        assert steps == sorted(set(steps)), name
    return server.series()


def test_a_run_with_a_restart_is_one_run_with_each_step_once(tmp_path, server):
    run = make_run(tmp_path, workers=3)
    state = send(run, server)
    series = steps_once(server)
    assert {step for step, _ in series["epoch/val_loss"]} == {60, 120, 180, 240}
    repeated = range(RESUMES_AT + 1, FAILS_AT)
    assert any(step in repeated for step, _ in series["train/loss"])
    for rank in range(3):
        assert series[f"worker_{rank}/step_seconds/p50"]
        assert series[f"worker_{rank}/gradients/norm"]
    assert series["gradients/norm"]
    assert server.facts["restarts"] == 1
    assert "MemoryError" in server.facts["last_failure"]
    assert server.statuses == ["finished"]
    assert (state.id, state.status, len(server.starts)) == ("run-1", "finished", 1)


def test_what_was_sent_is_not_sent_again(tmp_path, server):
    run = make_run(tmp_path)
    send(run, server)
    sent = len(server.points)
    send(run, server)
    assert len(server.points) == sent
    first, second = server.starts
    assert (first.tracker_id, second.tracker_id) == (None, "run-1")
    assert first.key == second.key


def test_a_crash_before_the_state_is_written_loses_nothing(tmp_path, server):
    whole = Server()
    send(make_run(tmp_path, "whole"), whole)
    run = make_run(tmp_path, "made")
    server.fails_after = 5
    send(run, server, sleep=lambda seconds: None)
    expected = {(name, *point) for name, points in whole.series().items() for point in points}
    sent = [(name, *point) for name, points in server.series().items() for point in points]
    assert set(sent) == expected
    assert len(server.starts) == 2
    assert sum(map(len, server.series().values())) > sum(map(len, whole.series().values()))


def test_what_is_not_safe_yet_is_sent_again(tmp_path, server):
    """A tracker that only its end makes safe, as wandb online, and a process that is killed."""
    run = make_run(tmp_path)
    server.is_safe = False

    class Killed(BaseException):
        pass

    class Dying(Client):
        def finish(self, status):
            raise Killed

    with pytest.raises(Killed):
        Sender(name="wandb", run_dir=run, make=lambda: Dying(server), follows=False).run()
    server.buffered = []
    send(run, server)
    assert {step for step, _ in steps_once(server)["epoch/loss"]} == {60, 120, 180, 240}


def test_a_tracker_that_is_down_is_tried_again_until_it_is_up(tmp_path, server):
    run = make_run(tmp_path)
    server.is_up = False
    waits, errors = [], []

    def sleep(seconds):
        waits.append(seconds)
        errors.append(json.loads(state_path(run, "wandb").read_text())["error"])
        server.is_up = len(waits) == 9

    state = send(run, server, follows=True, sleep=sleep)
    assert waits == [1, 2, 4, 8, 16, 32, LONGEST_WAIT, LONGEST_WAIT, LONGEST_WAIT]
    assert errors[0] == "ConnectionError: refused"
    assert state.error is None
    assert len(steps_once(server)["epoch/loss"]) == 4


def test_the_wait_grows_to_a_minute_and_stays_there():
    assert [wait_after(failures) for failures in (1, 2, 6, 7, 5000)] == [1, 2, 32, 60, 60]


def test_a_password_in_the_address_of_a_tracker_is_written_nowhere(tmp_path, server, monkeypatch):
    run = make_run(tmp_path)
    address = "https://user:geheim@host/api"
    monkeypatch.setattr(Client, "place", address)
    assert send(run, server).place == "https://user:***@host/api"
    path = state_path(run, "wandb")
    assert "geheim" not in path.read_text()

    def fails(self, points):
        raise ConnectionError(f"no answer from {address}")

    monkeypatch.setattr(Client, "start", fails)
    with pytest.raises(TrackerError, match=r"no answer from https://user:\*\*\*@host") as raised:
        send(run, server, sleep=lambda seconds: None)
    assert "geheim" not in str(raised.value)
    assert "geheim" not in path.read_text()
    record = logging.LogRecord("n", logging.WARNING, "f", 1, "at %s", (address,), None)
    assert RedactingFormatter().format(record) == "at https://user:***@host/api"


def test_a_user_who_waits_gets_the_error(tmp_path, server):
    run = make_run(tmp_path)
    server.is_up = False
    with pytest.raises(TrackerError, match="refused"):
        send(run, server, sleep=lambda seconds: None)
    server.is_up = True
    send(run, server)
    assert len(steps_once(server)["epoch/loss"]) == 4


class Growing:
    """A run that grows while it is followed."""

    def __init__(self, path):
        self.path = path
        self.clock = Clock()
        self.launcher = RecordWriter(launcher_records_path(path), clock=self.clock)
        self.chief = RecordWriter(records_path(path, 0), clock=self.clock)
        self.launcher.write("run_start", name="r", workers=1, strategy="auto", seed=1, argv=[])
        self.chief.write("worker_start", attempt=0, rank=0)
        self.chief.write("fit_start", fit=0, step=0)

    def step(self, step):
        self.clock.now += 1
        self.chief.write("train_metrics", step=step, logs={"loss": 1.0 / step})

    def end(self, code=0):
        self.launcher.write("run_end", exit_code=code, report=None)


def append(path, data):
    with path.open("ab") as file:
        file.write(data)


def test_a_run_is_followed_to_its_end_and_half_a_line_is_waited_for(tmp_path, server):
    run = Growing(tmp_path)
    file = records_path(tmp_path, 0)
    line = b'{"v":1,"t":1790000009.0,"kind":"train_metrics","step":2,"logs":{"loss":0.5}}\n'
    todo = [
        lambda: run.step(1),
        lambda: append(file, line[:40]),
        lambda: append(file, line[40:]),
        lambda: (run.step(3), run.end(75)),
    ]
    send(tmp_path, server, follows=True, sleep=lambda seconds: todo.pop(0)())
    assert [step for step, _ in steps_once(server)["train/loss"]] == [1, 2, 3]
    assert server.statuses == ["stopped"]


def test_a_resumed_run_continues_in_the_same_run(tmp_path, server):
    run = Growing(tmp_path)
    run.step(1)
    run.end(1)
    send(tmp_path, server, follows=True)
    run.launcher.write("run_start", name="r", workers=1, strategy="auto", seed=1, argv=[])
    run.step(2)
    seconds = []

    def sleep(waited):
        seconds.append(waited)
        run.end(0)

    send(tmp_path, server, follows=True, sleep=sleep)
    assert [step for step, _ in steps_once(server)["train/loss"]] == [1, 2]
    assert server.statuses == ["failed", "finished"]
    assert server.starts[1].tracker_id == "run-1"
    assert seconds, "the end of the first time is not the end of the second"


def test_one_process_sends_a_run_to_a_tracker(tmp_path, server):
    run = make_run(tmp_path)

    def second():
        with pytest.raises(TrackerError, match="Another process"):
            send(run, server)
        return server.make()

    Sender(name="wandb", run_dir=run, make=second, follows=False).run()


def test_the_model_file_that_was_saved_last_is_sent_once(tmp_path, server):
    run = Growing(tmp_path)
    for step, name in enumerate(
        ("a.keras", "b.keras", "latest.weights.h5", "missing.keras"), start=1
    ):
        if name != "missing.keras":
            (tmp_path / name).write_text(name)
        run.chief.write("checkpoint", step=step, path=str(tmp_path / name), seconds=1.0, bytes=1)
    run.end()
    send(tmp_path, server, artifacts=True)
    send(tmp_path, server, artifacts=True)
    assert server.files == [b"b.keras"]
    assert server.series()["checkpoint/seconds"] == [(step, 1.0) for step in (1, 2, 3, 4)]


def fit(number, at, *, steps, first=0, attempt=0):
    """The events of one `fit` on the chief and on worker 1."""
    where = {"attempt": attempt, "fit": number}
    start = {"epochs": 1, "initial_epoch": 0, "steps": steps, "model": "m", "parameters": 1}
    found = [
        FitStart(t=at, writer_rank=rank, step=first, optimizer="Adam", **start, **where)
        for rank in (0, 1)
    ]
    found += [
        TrainMetrics(t=at + i / 100, writer_rank=0, step=first + i, epoch=0, batch=i,
                     logs={"loss": float(number)}, learning_rate=None, **where)
        for i in range(1, steps + 1)
    ]  # fmt: skip
    found.append(EpochMetrics(t=at + 1, writer_rank=0, step=first + steps, epoch=0, logs={},
                              learning_rate=None, seconds=1.0, **where))  # fmt: skip
    found.append(ThroughputEvent(t=at + 1, writer_rank=1, step=first + steps, steps=steps,
                                 seconds=1.0, samples=1.0, samples_per_second=1.0,
                                 step_seconds={"p50": 0.1}, time_fractions={},
                                 memory_bytes=None, **where))  # fmt: skip
    return found


def names_and_steps(points):
    found = {}
    for point in points:
        for name in point.values:
            found.setdefault(name, []).append(point.step)
    return found


def test_a_fit_that_continues_has_the_names_of_the_one_before():
    found = names_and_steps(
        RunMetrics().take([*fit(0, 1.0, steps=3), *fit(1, 9.0, steps=2, first=3)])
    )
    assert found["train/loss"] == [1, 2, 3, 4, 5]
    assert found["worker_1/step_seconds/p50"] == [3, 5]


def test_a_fit_whose_steps_start_again_has_names_of_its_own():
    events = [*fit(0, 1.0, steps=2), *fit(1, 9.0, steps=3), *fit(2, 20.0, steps=3, first=3)]
    metrics = RunMetrics()
    found = names_and_steps(metrics.take(events))
    assert found["train/loss"] == [1, 2]
    assert found["fit_1/train/loss"] == [1, 2, 3, 4, 5, 6]
    assert found["fit_1/worker_1/step_seconds/p50"] == [3, 6]
    again = RunMetrics(last_steps=metrics.last_steps, prefixes=metrics.prefixes)
    assert again.take(events) == []


def test_a_restarted_fit_is_no_fit_that_starts_again():
    events = [*fit(0, 1.0, steps=3), *fit(0, 9.0, steps=5, attempt=1)]
    assert names_and_steps(RunMetrics().take(events))["train/loss"] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--lr", "0.1", "--fast", "data"], {"lr": 0.1, "fast": "data"}),
        (["--fast", "--lr=1e-3"], {"fast": True, "lr": 0.001}),
        (["train", "--shift", "-2", "out"], {"0": "train", "shift": -2, "1": "out"}),
        (["-v"], {"v": True}),
        (["--lr", "1", "--", "--fast", "--"], {"lr": 1, "0": "--fast", "1": "--"}),
        (["-", "--=x"], {"0": "-", "1": "--=x"}),
    ],
)
def test_arguments_of_the_script_by_name(words, found):
    assert script_arguments(words) == {f"args/{name}": value for name, value in found.items()}


def test_the_configuration_is_flat_and_holds_no_secret(tmp_path):
    run = make_run(tmp_path)
    document = json.loads((run / "run.json").read_text())
    document["options"] |= {
        "arguments": ["--api-key", "geheim", "--lr", "0.5"],
        "env": ["WANDB_API_KEY"],
        "switches": {"debug": False, "profile": None},
    }
    (run / "run.json").write_text(json.dumps(document))
    found = run_config(run)
    assert found["args/api-key"] == "***"
    assert found["args/lr"] == 0.5
    assert found["options/switches/debug"] is False
    assert found["versions/keras"] == "3.12.0"
    assert found["git_commit"] == "0123abcd"
    assert found["seed"] == 7
    assert "geheim" not in json.dumps(found)
    assert all(isinstance(value, (str, int, float)) for value in found.values())


def test_names_of_trackers_may_be_separated_by_commas_and_repeated():
    assert parse_trackers(["wandb,mlflow", "wandb", "aim"]) == ("wandb", "mlflow", "aim")
    with pytest.raises(ConfigurationError, match="neptune"):
        parse_trackers(["wandb,neptune"])


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch):
    def version(name):
        if name == "comet_ml":
            raise trackers.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(trackers, "version", version)
    check_installed(["wandb", "tensorboard"])
    with pytest.raises(ConfigurationError, match=r"comet_ml.*pip install 'phalanx\[comet\]'"):
        check_installed(["wandb", "comet"])


class Process:
    """A process that feeds a tracker."""

    pid = 2**22 + 1

    def __init__(self):
        self.code = None
        self.is_kept = False  # by the kernel, in state D

    def poll(self):
        return self.code

    def signal(self, number):
        self.code = None if self.is_kept else -int(number)


class Scene:
    """The launcher's side, with a clock that passes in `sleep`."""

    def __init__(self, run_dir, names=("mlflow", "aim")):
        self.now = 0.0
        self.output, self.started, self.commands = [], [], []
        self.fails = False
        self.on_sleep = lambda: None
        self.run_dir = run_dir
        self.processes = TrackerProcesses(
            names=names, project="p", artifacts=True, environment={"TF_CONFIG": "{}", "KEY": "1"},
            run_dir=run_dir, announce=self.output.append, start=self.start, now=lambda: self.now,
            sleep=self.sleep,
        )  # fmt: skip

    def start(self, command, *, env, log):
        if self.fails:
            raise LaunchError("no memory")
        self.commands.append((command, env, log))
        self.started.append(Process())
        return self.started[-1]

    def sleep(self, seconds):
        self.now += seconds
        self.on_sleep()

    def poll(self):
        self.now += 10
        self.processes.poll()

    def state(self, name, **fields):
        state_path(self.run_dir, name).write_text(json.dumps(fields))


def test_a_process_that_the_kernel_keeps_is_left(tmp_path):
    scene = Scene(tmp_path)
    with scene.processes:
        scene.started[0].is_kept = True
    assert scene.now < 60
    (line,) = scene.output
    assert f"after SIGKILL: tracker mlflow (process {Process.pid}). " in line


def test_a_process_for_each_tracker_is_started_and_ended(tmp_path):
    scene = Scene(tmp_path)
    with scene.processes:
        command, env, log = scene.commands[0]
        assert command[3:] == [
            "phalanx.trackers", "mlflow", str(tmp_path), "--project", "p", "--artifacts"
        ]  # fmt: skip
        assert env == {"KEY": "1", "CUDA_VISIBLE_DEVICES": "-1"}
        assert log == tmp_path / "trackers" / "mlflow.log"
        assert [process.code for process in scene.started] == [None, None]
    assert [process.code for process in scene.started] == [-9, -9]


def test_a_process_that_ends_is_started_again_but_not_for_ever(tmp_path):
    scene = Scene(tmp_path, names=("aim",))
    with scene.processes:
        for _ in range(10):
            scene.started[-1].code = 1
            scene.poll()
    assert len(scene.started) == 1 + trackers.MAX_REPLACEMENTS
    assert sum("not started any more" in line for line in scene.output) == 1


def test_a_process_that_cannot_start_does_not_end_the_run(tmp_path):
    scene = Scene(tmp_path, names=("aim",))
    scene.fails = True
    with scene.processes:
        scene.poll()
        scene.processes.finish(seconds=3, upload_seconds=3, is_interrupted=lambda: False)
    assert "no memory" in scene.output[0]
    assert scene.now < 15, "there is nothing to wait for"


def test_errors_and_places_are_announced_once(tmp_path):
    scene = Scene(tmp_path, names=("aim",))
    with scene.processes:
        for _ in range(2):
            scene.state("aim", error="ConnectionError: refused", place=None)
            scene.poll()
        for _ in range(2):
            scene.state("aim", error=None, place="http://there")
            scene.poll()
    assert scene.output == [
        "tracker aim cannot be reached, and is tried again: ConnectionError: refused",
        "tracker aim: http://there",
        "tracker aim is reached again",
    ]


def test_the_end_waits_for_the_trackers_and_no_longer_than_it_may(tmp_path):
    scene = Scene(tmp_path)
    with scene.processes:
        scene.started[0].code = 0
        scene.processes.finish(seconds=30, upload_seconds=30, is_interrupted=lambda: False)
        assert 30 <= scene.now < 31
    (line,) = scene.output
    assert f"phalanx report --to aim --tracker-artifacts {tmp_path}" in line


def test_the_end_waits_longer_for_a_model_file_where_the_tracker_is_reached(tmp_path):
    scene = Scene(tmp_path)
    with scene.processes:
        scene.state("mlflow", error="no route")
        scene.state("aim", place="http://there")

        def on_sleep():
            if scene.now > 100:
                scene.started[1].code = 0

        scene.on_sleep = on_sleep
        scene.processes.finish(seconds=30, upload_seconds=900, is_interrupted=lambda: False)
        assert 100 < scene.now < 101
        assert "tracker mlflow: not everything was sent" in scene.output[-1]
        scene.state("aim", error="no route")
        scene.started[1].code = None
        scene.processes.finish(seconds=30, upload_seconds=900, is_interrupted=lambda: False)
        assert 130 < scene.now < 132


def test_a_signal_ends_the_wait(tmp_path):
    scene = Scene(tmp_path)
    with scene.processes:
        scene.processes.finish(seconds=30, upload_seconds=30, is_interrupted=lambda: scene.now > 2)
        assert scene.now < 3


def test_a_tracker_that_finishes_is_waited_for(tmp_path):
    scene = Scene(tmp_path, names=("aim",))

    def on_sleep():
        if scene.now > 4:
            scene.started[0].code = 0

    scene.on_sleep = on_sleep
    with scene.processes:
        scene.processes.finish(seconds=30, upload_seconds=30, is_interrupted=lambda: False)
    assert 4 < scene.now < 5
    assert scene.output == []


def test_times_are_those_of_the_events(tmp_path, server):
    send(make_run(tmp_path), server)
    assert all(point.time > BEGAN for point in server.points)
