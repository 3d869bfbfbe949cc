"""Whole runs with stand-ins for the workers: real processes, but no TensorFlow in them."""

import io
import json
import os
import signal
import sys
import threading
import time

import psutil
import pytest

from phalanx.errors import OptionError, ScriptError
from phalanx.launch.hardware import Machine
from phalanx.launch.options import RunOptions
from phalanx.launch.run import Surroundings, run
from phalanx.launch.supervise import Patience

PRELUDE = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
from phalanx.cluster.spec import WorkerSpec
from phalanx.launch.failure import FailureRecord
from phalanx.launch.layout import AttemptPaths
spec = WorkerSpec.from_environment(os.environ)
rank, attempt = spec.rank, spec.attempt
paths = AttemptPaths(run=Path(spec.run_dir), attempt=attempt)
def fail(message, type="ValueError", at=None):
    FailureRecord(rank=rank, type=type, message=message, traceback="",
                  time=at or time.time()).write(paths.error(rank))
    sys.exit(1)
def wait():
    while True: time.sleep(0.05)
print("worker", rank, "is up", flush=True)
"""
SOON = Patience(poll=0.02, settle=0.5, leave=1.0, grace=0.5)


class Scene:
    def __init__(self, directory):
        self.directory = directory
        self.output = io.StringIO()
        self.said = []
        self.script = directory / "train.py"
        self.script.write_text("pass")

    def run(self, source, **asked):
        options = {"workers": 2, "tee": "all", "run_dir": self.directory / "runs", **asked}
        surroundings = Surroundings(
            environment=os.environ,
            machine=Machine(cores=2),
            output=self.output,
            argv=["phalanx", "run"],
            command=lambda *a, **k: (sys.executable, "-c", PRELUDE + source),
            patience=SOON,
            announce=self.said.append,
        )
        return run(RunOptions(target=str(self.script), **options), surroundings)


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
    assert "seed 11" in scene.said[0]
    cluster = json.loads((result.run_dir / "attempts/0/cluster.json").read_text())
    assert len({spec["addresses"][0] for spec in cluster}) == 1


def test_a_seed_is_drawn_for_all_and_written_down(scene):
    result = scene.run("print('seed', spec.seed)")
    seed = json.loads((result.run_dir / "run.json").read_text())["seed"]
    assert scene.output.getvalue().count(f"seed {seed}\n") == 2
    assert f"seed {seed}" in scene.said[0]


def test_the_cause_and_not_the_first_to_go(scene):
    result = scene.run(
        "fail('peer gone', 'UnavailableError') if rank == 0 else time.sleep(0.2) or fail('bad')"
    )
    assert result.report.startswith("Worker 1 failed first: ValueError: bad")
    assert "attempts/0/worker-1.log" in result.report


def test_sigkill(scene):
    result = scene.run("os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else wait()")
    assert result.exit_code == 137
    assert "Worker 1 failed first: it was killed by SIGKILL" in result.report
    assert "Worker 0 was stopped" in result.report


def test_what_a_worker_started_goes_with_it(scene):
    result = scene.run(
        """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("child", child.pid, flush=True)
if rank == 1:
    time.sleep(0.3)
    sys.exit(4)
wait()
"""
    )
    assert result.exit_code == 4
    children = [
        int(line.split()[-1]) for line in scene.output.getvalue().splitlines() if "child" in line
    ]
    assert len(children) == 2
    deadline = time.monotonic() + 5
    while any(map(alive, children)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(alive, children))


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_taken_port_starts_the_gang_anew(scene):
    result = scene.run(
        "fail('Could not start gRPC server', 'UnknownError') if rank == 0 and attempt < 2"
        " else wait() if attempt < 2 else None"
    )
    assert result.exit_code == 0
    assert len(list((result.run_dir / "attempts").iterdir())) == 3
    assert sum("starting again" in line for line in scene.said) == 2


def test_ports_are_not_tried_for_ever(scene):
    result = scene.run("fail('Could not start gRPC server', 'UnknownError')", workers=2)
    assert result.exit_code == 1
    assert "Could not start gRPC server" in result.report
    assert len(list((result.run_dir / "attempts").iterdir())) == 4


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_launcher(scene, number, code):
    threading.Timer(0.5, os.kill, (os.getpid(), number)).start()
    result = scene.run("wait()")
    assert (result.exit_code, result.report) == (code, None)


def test_no_worker_for_a_broken_script(scene):
    scene.script.write_text("x = (")
    with pytest.raises(ScriptError, match="SyntaxError"):
        scene.run("")
    assert not (scene.directory / "runs").exists()


def test_another_backend_is_refused(scene):
    with pytest.raises(OptionError, match="KERAS_BACKEND is 'jax'"):
        scene.run("", env={"KERAS_BACKEND": "jax"})


def test_the_users_variables_reach_the_workers(scene):
    scene.run("print(os.environ['FRUIT'])", env={"FRUIT": "apple"})
    assert scene.output.getvalue().count("apple") == 2
