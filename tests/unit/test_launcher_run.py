"""Whole runs with stand-ins for the workers: real processes, but no TensorFlow in them."""

import io
import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace

import psutil
import pytest

from phalanx.cli.report import html_of
from phalanx.errors import ConfigurationError, LaunchError, ScriptError
from phalanx.launcher.options import RunOptions
from phalanx.launcher.resources import Machine
from phalanx.launcher.run import LaunchContext, run
from phalanx.launcher.showing import Showing
from phalanx.launcher.supervisor import Timeouts
from phalanx.monitoring.event_log import launcher_records_path, read_records
from phalanx.report.run_data import load_run
from phalanx.report.run_json import to_json

pytestmark = pytest.mark.process

PRELUDE = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
from phalanx.cluster.spec import WorkerSpec
from phalanx.launcher.failure import FailureRecord
from phalanx.launcher.run_layout import AttemptPaths
spec = WorkerSpec.from_environment(os.environ)
rank, attempt = spec.rank, spec.attempt
paths = AttemptPaths(run=Path(spec.run_dir), attempt=attempt)
def fail(message, type="ValueError", at=None):
    FailureRecord(rank=rank, type=type, message=message, traceback="",
                  time=at or time.time()).write(paths.error(rank))
    sys.exit(1)
def wait():
    while True: time.sleep(0.05)
def until_there(name):
    while not Path(spec.run_dir, name).exists(): time.sleep(0.01)
print("worker", rank, "is up", flush=True)
"""
SOON = Timeouts(poll_interval=0.02, failure_settle=0.5, self_exit=1.0, sigkill=0.5)
PATIENT = replace(SOON, failure_settle=60.0, self_exit=60.0, sigkill_after_failure=60.0)
"""Where no one is waited for who does not come, however slow this machine is."""


class Scene:
    def __init__(self, directory):
        self.directory = directory
        self.output = io.StringIO()
        self.printed = []
        self.argv = ["phalanx", "run"]
        self.announce = self.printed.append
        self.script = directory / "train.py"
        self.script.write_text("pass")

    def when_all_have_said(self, text, act, workers=2):
        """Call `act` in a thread once so many workers have printed `text`."""

        def wait():
            while self.output.getvalue().count(text) < workers:
                time.sleep(0.01)
            act()

        threading.Thread(target=wait, daemon=True).start()

    def run(self, source, timeouts=SOON, **requested):
        options = {"workers": 2, "tee": "all", "run_dir": self.directory / "runs", **requested}
        context = LaunchContext(
            environment=os.environ,
            machine=Machine(cores=2),
            output=Showing(self.output),
            argv=self.argv,
            command=lambda *a, **k: (sys.executable, "-c", PRELUDE + source),
            timeouts=timeouts,
            announce=self.announce,
        )
        return run(RunOptions(target=str(self.script), **options), context)


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


def test_a_good_run_is_written_down(scene):
    result = scene.run("", name="good", seed=11)
    assert (result.exit_code, result.report) == (0, None)
    assert "[worker 1] worker 1 is up\n" in scene.output.getvalue()
    document = json.loads((result.run_dir / "run.json").read_text())
    assert document["seed"] == 11
    assert document["options"]["workers"] == 2
    assert document["result"]["exit_code"] == 0
    assert "keras" in document["versions"]
    assert "seed 11" in scene.printed[0]
    cluster = json.loads((result.run_dir / "attempts/0/cluster.json").read_text())
    assert len({spec["addresses"][0] for spec in cluster}) == 1


def test_what_a_killed_worker_had_put_aside_goes_with_the_worker_group(
    scene, tmp_path, monkeypatch
):
    """TMPDIR is where both launcher and workers put temporary files."""
    (tmp_path / "temporary").mkdir()
    (tmp_path / "temporary" / "phalanx-aside-1-of-another").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    scene.run(
        """
import tempfile
from phalanx.launcher.scratch import scratch_prefix
left = tempfile.mkdtemp(prefix=scratch_prefix(os.getpid()))
Path(left, "model.keras").write_text("weights")
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    assert [p.name for p in (tmp_path / "temporary").iterdir()] == ["phalanx-aside-1-of-another"]


def reported(result):
    return read_records(launcher_records_path(result.run_dir)).records


def test_the_launcher_records_a_good_run(scene):
    result = scene.run("", name="good", seed=11)
    start, attempt, *exits, end = reported(result)
    assert (start["kind"], start["name"], start["workers"]) == ("run_start", "good", 2)
    assert (start["strategy"], start["seed"], start["argv"]) == ("auto", 11, ["phalanx", "run"])
    assert (attempt["kind"], attempt["attempt"]) == ("attempt_start", 0)
    assert [worker["rank"] for worker in attempt["workers"]] == [0, 1]
    assert all(worker["pid"] > 0 and worker["host"] for worker in attempt["workers"])
    assert {(e["kind"], e["code"], e["signal"], e["summary"]) for e in exits} == {
        ("worker_exit", 0, None, None)
    }
    assert {e["rank"] for e in exits} == {0, 1}
    assert (end["kind"], end["exit_code"], end["report"]) == ("run_end", 0, None)


def test_the_launcher_records_who_failed_and_who_was_stopped(scene):
    result = scene.run("fail('bad') if rank == 1 else wait()", PATIENT)
    *_, first, second, end = reported(result)
    assert (first["rank"], first["code"], first["terminated_by_launcher"]) == (1, 1, False)
    assert first["summary"] == "ValueError: bad"
    assert (second["rank"], second["signal"], second["terminated_by_launcher"]) == (
        0,
        "SIGTERM",
        True,
    )
    assert second["summary"] is None
    assert (end["exit_code"], end["report"]) == (1, result.report)


def test_the_launcher_records_that_it_restarted(scene):
    result = scene.run(
        "fail('Could not start gRPC server', 'UnknownError') if attempt < 1 else None", workers=1
    )
    records = reported(result)
    (restart,) = [record for record in records if record["kind"] == "restart"]
    assert (restart["attempt"], restart["rank"], restart["seconds"]) == (1, 0, 0.0)
    assert "gRPC server" in restart["cause"]
    assert [r["attempt"] for r in records if r["kind"] == "attempt_start"] == [0, 1]
    assert [r["attempt"] for r in records if r["kind"] == "worker_exit"] == [0, 1]


def test_the_launcher_records_that_no_worker_could_start(scene):
    context = LaunchContext(
        environment=os.environ,
        machine=Machine(cores=2),
        output=scene.output,
        command=lambda *a, **k: (str(scene.directory / "none"),),
    )
    options = RunOptions(target=str(scene.script), workers=1, run_dir=scene.directory, name="bad")
    with pytest.raises(LaunchError):
        run(options, context)
    end = read_records(launcher_records_path(scene.directory / "bad")).records[-1]
    assert (end["kind"], end["exit_code"]) == ("run_end", 69)
    assert "Could not start" in end["report"]


def test_a_seed_is_drawn_for_all_and_written_down(scene):
    result = scene.run("print('seed', spec.seed)")
    seed = json.loads((result.run_dir / "run.json").read_text())["seed"]
    assert scene.output.getvalue().count(f"seed {seed}\n") == 2
    assert f"seed {seed}" in scene.printed[0]


def test_the_cause_and_not_the_first_to_go(scene):
    result = scene.run(
        "fail('peer lost', 'UnavailableError') if rank == 0 else time.sleep(0.2) or fail('bad')",
        PATIENT,
    )
    assert result.report.startswith("Worker 1 failed first: ValueError: bad")
    assert "attempts/0/worker-1.log" in result.report


def test_a_reader_that_has_ended_ends_no_run(scene):
    class Ended(io.StringIO):
        def flush(self):
            (scene.directory / "runs/it/tried").touch()
            raise BrokenPipeError

    scene.output = Showing(Ended())
    result = scene.run('until_there("tried"); print("the end")', name="it")
    assert (result.exit_code, result.report) == (0, None)
    document = json.loads((result.run_dir / "run.json").read_text())
    assert document["result"]["exit_code"] == 0
    for rank in (0, 1):
        assert (result.run_dir / f"attempts/0/worker-{rank}.log").read_text().endswith("the end\n")


def test_sigkill(scene):
    result = scene.run("os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else wait()")
    assert result.exit_code == 137
    assert "Worker 1 failed first: it was killed by SIGKILL" in result.report
    assert "Worker 0 was stopped" in result.report


def test_what_a_worker_started_goes_with_it(scene):
    result = scene.run(
        """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
if rank == 1:
    until_there("child")
    sys.exit(4)
Path(spec.run_dir, "child").touch()
wait()
"""
    )
    assert result.exit_code == 4
    children = [
        int(line.split()[-1]) for line in scene.output.getvalue().splitlines() if "child" in line
    ]
    assert len(children) == 2
    deadline = time.monotonic() + 60
    while any(map(alive, children)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(alive, children))


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_taken_port_starts_the_worker_group_again(scene):
    result = scene.run(
        "fail('Could not start gRPC server', 'UnknownError') if rank == 0 and attempt < 2"
        " else wait() if attempt < 2 else None"
    )
    assert result.exit_code == 0
    assert len(list((result.run_dir / "attempts").iterdir())) == 3
    assert sum("restarting" in line for line in scene.printed) == 2


def test_ports_are_not_tried_for_ever(scene):
    result = scene.run("fail('Could not start gRPC server', 'UnknownError')", workers=2)
    assert result.exit_code == 1
    assert "Could not start gRPC server" in result.report
    assert len(list((result.run_dir / "attempts").iterdir())) == 4


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_launcher(scene, number, code):
    scene.when_all_have_said("is up", lambda: os.kill(os.getpid(), number))
    result = scene.run("wait()")
    assert (result.exit_code, result.report) == (code, None)


def test_no_worker_for_a_broken_script(scene):
    scene.script.write_text("x = (")
    with pytest.raises(ScriptError, match="SyntaxError"):
        scene.run("")
    assert not (scene.directory / "runs").exists()


def test_another_backend_is_refused(scene):
    with pytest.raises(ConfigurationError, match="KERAS_BACKEND is 'jax'"):
        scene.run("", env={"KERAS_BACKEND": "jax"})


def check_no_file_holds(secret, scene, result):
    """Looks into the report and into each file that the run wrote."""
    runs, now = [load_run(result.run_dir)], time.time()
    (scene.directory / "page.html").write_text(html_of(runs, now))
    (scene.directory / "page.json").write_text(to_json(runs, now))
    files = [path for path in scene.directory.rglob("*") if path.is_file()]
    assert len(files) > 6
    assert not [path for path in files if secret.encode() in path.read_bytes()]


def test_values_of_the_users_variables_are_written_nowhere(scene):
    words = ["--env", "KEY=s3cr3t", "--env", "KEY=s3cr3t-too", "--env=OTHER=s3cr3t=2"]
    scene.argv = ["phalanx", "run", *words, "train.py", "--env", "own=1"]
    env = {"KEY": "s3cr3t-too", "OTHER": "s3cr3t=2"}
    source = "assert os.environ['KEY'] == 's3cr3t-too'; sys.exit(3 if attempt == 0 else 0)"
    requested = {"env": env, "arguments": ("--env", "own=1"), "max_restarts": 1, "name": "it"}
    result = scene.run(source, **requested)
    assert result.exit_code == 0
    check_no_file_holds("s3cr3t", scene, result)
    document = json.loads((result.run_dir / "run.json").read_text())
    assert document["options"]["env"] == ["KEY", "OTHER"]
    reported = ["--env", "KEY", "--env", "KEY", "--env=OTHER", "train.py", "--env", "own=1"]
    assert document["argv"] == ["phalanx", "run", *reported]
    records = read_records(launcher_records_path(result.run_dir)).records
    assert records[0]["argv"] == document["argv"]


def test_secret_arguments_are_written_nowhere(scene):
    given = ["--api-key", "s3cr3t", "--token=s3cr3t", "--data", "s3://me:s3cr3t@host/data"]
    scene.argv = ["phalanx", "run", "train.py", *given]
    requested = {"arguments": tuple(given), "max_restarts": 1, "name": "it"}
    result = scene.run("sys.exit(3 if attempt == 0 else 0)", **requested)
    assert result.exit_code == 0
    check_no_file_holds("s3cr3t", scene, result)
    assert "s3cr3t" not in "\n".join(scene.printed)
    document = json.loads((result.run_dir / "run.json").read_text())
    recorded = ["--api-key", "***", "--token=***", "--data", "s3://me:***@host/data"]
    assert document["options"]["arguments"] == recorded
    assert document["argv"] == ["phalanx", "run", "train.py", *recorded]
    records = read_records(launcher_records_path(result.run_dir)).records
    assert records[0]["argv"] == document["argv"]


def test_a_report_of_an_older_run_shows_no_secret_arguments(scene):
    result = scene.run("", name="it")
    path = result.run_dir / "run.json"
    document = json.loads(path.read_text())
    document["argv"] = ["phalanx", "run", "train.py", "--api-key", "s3cr3t"]
    document["options"]["arguments"] = ["--api-key", "s3cr3t"]
    path.write_text(json.dumps(document))
    runs = [load_run(result.run_dir)]
    assert "s3cr3t" not in html_of(runs, time.time()) + to_json(runs, time.time())


def test_only_the_owner_can_read_what_a_run_writes(scene):
    run = scene.directory / "runs" / "it"
    run.mkdir(parents=True)
    run.chmod(0o755)  # The user's choice.
    assert scene.run("", name="it").exit_code == 0
    assert run.stat().st_mode & 0o777 == 0o755
    made = ("records", "attempts/0")
    assert [(run / name).stat().st_mode & 0o777 for name in made] == [0o700] * 2
    assert (run / "records/launcher.jsonl").stat().st_mode & 0o777 == 0o600


def test_the_users_variables_reach_the_workers(scene):
    scene.run("print(os.environ['FRUIT'])", env={"FRUIT": "apple"})
    assert scene.output.getvalue().count("apple") == 2


def test_a_worker_group_that_fails_is_started_again(scene):
    source = """
if attempt < 2 and rank == 1: os.kill(os.getpid(), signal.SIGKILL)
if attempt < 2: wait()
"""
    result = scene.run(source, max_restarts=2, name="again")
    assert (result.exit_code, result.report) == (0, None)
    printed = "\n".join(scene.printed)
    assert "worker 1 failed: it was killed by SIGKILL" in printed
    assert "restart 1 of 2 in 1 s" in printed
    assert "restart 2 of 2 in 2 s" in printed
    records = read_records(launcher_records_path(result.run_dir)).records
    assert [r["attempt"] for r in records if r["kind"] == "restart"] == [1, 2]
    assert sorted(p.name for p in (result.run_dir / "attempts").iterdir()) == ["0", "1", "2"]


def test_an_attempt_whose_files_cannot_be_written_uses_up_a_restart(scene):
    result = scene.run(
        """
if spec.attempt == 0 and spec.rank == 0:
    Path(spec.run_dir, "attempts", "1").write_text("in the way")
    sys.exit(3)
""",
        max_restarts=2,
    )
    assert result.exit_code == 0
    kinds = read_records(launcher_records_path(result.run_dir)).records
    restarts = [each["attempt"] for each in kinds if each["kind"] == "restart"]
    assert restarts == [1, 2]


def test_a_result_that_cannot_be_written_leaves_the_exit_code(scene):
    result = scene.run(
        """
if spec.rank == 0:
    Path(spec.run_dir, "run.json").unlink()
    Path(spec.run_dir, "run.json").mkdir()
""",
    )
    assert result.exit_code == 0
    assert any("could not write the result" in line for line in scene.printed)


def test_a_bug_is_not_tried_for_ever(scene):
    source = "\nif rank == 0: fail('always')\nwait()\n"
    result = scene.run(source, max_restarts=5)
    assert result.exit_code == 1
    assert "Worker 0 failed first: ValueError: always" in result.report
    assert "so it is a bug" in result.report
    assert len(list((result.run_dir / "attempts").iterdir())) == 2


SAVES = """
def save(number, frame):
    RecordWriter(records_path(spec.run_dir, rank)).write("worker_end", ok=True, error=None, step=7)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
from phalanx.monitoring.event_log import RecordWriter, records_path
print("listening", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_run_that_is_asked_to_go_has_its_training_saved(scene, number):
    scene.when_all_have_said("listening", lambda: os.kill(os.getpid(), number))
    result = scene.run(SAVES + "wait()", max_restarts=3, name="it")
    assert (result.exit_code, result.report) == (75, None)
    assert f"{number.name}: asking all workers to save and stop" in "\n".join(scene.printed)
    assert "every worker has saved and stopped at step 7; run the same command" in scene.printed[-1]
    kinds = [record["kind"] for record in reported(result)]
    assert kinds.count("preemption") == 1
    assert "restart" not in kinds


def test_the_same_command_continues_in_the_same_directory(scene):
    source = SAVES + "os.kill(os.getpid(), signal.SIGTERM) if attempt == 0 else sys.exit(0)\nwait()"
    first = scene.run(source, workers=1, name="it")
    assert first.exit_code == 75
    second = scene.run(source, workers=1, name="it")
    assert (second.exit_code, second.run_dir) == (0, first.run_dir)
    assert any(line.startswith("resuming run it") for line in scene.printed)
    assert (
        len({line.split("seed ")[1].split(",")[0] for line in scene.printed if "seed" in line}) == 1
    )
    starts = [record for record in reported(second) if record["kind"] == "attempt_start"]
    assert [start["attempt"] for start in starts] == [0, 1]
    data = load_run(second.run_dir)
    assert data.end.exit_code == 0


def test_a_run_without_a_name_says_which_to_give(scene):
    result = scene.run(SAVES + "os.kill(os.getpid(), signal.SIGTERM); wait()", workers=1)
    assert scene.printed[-1].endswith(f"again with --name {result.run_dir.name} to resume")


def test_a_worker_that_is_asked_to_go_takes_the_others_with_it(scene):
    source = SAVES + "time.sleep(0.2 * rank); os.kill(os.getpid(), signal.SIGTERM); wait()"
    result = scene.run(source, max_restarts=3)
    assert result.exit_code == 75
    assert [ending.exit_code for ending in result.endings] == [75, 75]
    assert len(list((result.run_dir / "attempts").iterdir())) == 1


def test_training_that_ends_while_it_is_asked_to_go_has_ended_well(scene):
    source = (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print('up', flush=True); wait()"
    )

    scene.when_all_have_said("] up", lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert scene.run(source).exit_code == 0


def test_no_time_to_save(scene):
    source = "signal.signal(signal.SIGTERM, lambda *_: None); print('up', flush=True); wait()"

    scene.when_all_have_said("] up", lambda: os.kill(os.getpid(), signal.SIGTERM))
    result = scene.run(source, grace_period=0.2)
    assert result.exit_code == 143
    assert [ending.exit_code for ending in result.endings] == [-signal.SIGKILL] * 2


def test_ctrl_c_between_two_attempts_ends_the_run(scene):
    def announce(line):
        if "restart 1" in line:
            os.kill(os.getpid(), signal.SIGINT)

    scene.announce = announce
    result = scene.run("os.kill(os.getpid(), signal.SIGKILL)", max_restarts=1)
    assert result.exit_code == 130
    assert len(list((result.run_dir / "attempts").iterdir())) == 1


def test_nccl_without_a_gpu_is_refused_before_anything_starts(scene):
    with pytest.raises(ConfigurationError, match="found none"):
        scene.run("", strategy="multiworker", communication_backend="nccl")
    assert not (scene.directory / "runs").exists()
