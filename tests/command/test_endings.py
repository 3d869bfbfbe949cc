"""Every way in which a run can end, with the real command and the real TensorFlow."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from phalanx.monitoring.event_log import launcher_records_path, read_records

GANG = """
import os, signal, sys, time
import tensorflow as tf
strategy = tf.distribute.get_strategy()
rank = strategy.cluster_resolver.task_id
@tf.function
def meet():
    one = strategy.run(lambda: tf.constant(1.0))
    return strategy.reduce("SUM", one, axis=None)
meet()
print("all are here", flush=True)
"""


FORKS = """
import os, sys
if (child := os.fork()) == 0:
    {act}
say("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("act", "code"), [("sys.exit(3)", 3), ("sys.exit()", 0), ("raise ValueError('x')", 1)]
)
def test_a_process_that_a_script_forks_is_not_the_worker(command, act, code):
    finished = command.run("--workers", "2", command.script(FORKS.format(act=act)), deadline=120)
    assert finished.code == 0, finished.err
    assert finished.output() == {"child": code}


@pytest.mark.full
@pytest.mark.parametrize(
    ("act", "code", "says"),
    [
        ("raise ValueError('row 3 is bad')", 1, "Worker 1 failed first: ValueError: row 3 is bad"),
        ("sys.exit(3)", 3, "Worker 1 failed first: the script ended with exit code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "Worker 1 failed first: it was killed by"),
    ],
)
def test_the_peer_that_waits_is_not_to_blame(command, act, code, says):
    script = command.script(f"{GANG}\nif rank == 1:\n    {act}\nmeet()\n")
    finished = command.run("--workers", "2", script, deadline=120)
    assert finished.code == code
    assert says in finished.err
    assert "worker-1.log" in finished.err
    assert "Worker 0 " in finished.err
    if code == 1:
        assert 'train.py", line' in finished.err


@pytest.mark.parametrize(
    ("number", "code"),
    [pytest.param(signal.SIGTERM, 143, marks=pytest.mark.full), (signal.SIGINT, 130)],
)
def test_a_signal_ends_all_and_no_one_must_be_killed(command, number, code):
    # Rank 1 sleeps and rank 0 is blocked in a collective: no Python handler would run there.
    script = command.script(f"{GANG}\nwhile rank == 1:\n    time.sleep(0.1)\nmeet()\n")
    process = command.start("--workers", "2", "--name", "it", script)
    command.wait_until(lambda: command.logs_hold("all are here"))
    time.sleep(0.5)
    process.send_signal(number)
    finished = command.finish(process)
    assert finished.code == code
    reported = read_records(launcher_records_path(command.directory / "runs" / "it")).records
    ends = [record["signal"] for record in reported if record["kind"] == "worker_exit"]
    assert ends == ["SIGTERM"] * 2


def test_workers_do_not_outlive_a_killed_launcher(command):
    script = command.script(f"{GANG}\nwhile True:\n    time.sleep(0.1)\n")
    process = command.start("--workers", "2", script)
    command.wait_until(lambda: command.logs_hold("all are here"))
    assert len(command.workers()) == 2
    process.kill()
    command.wait_until(lambda: not command.workers())
    process.communicate(timeout=60)


def processes_in(directory):
    """The processes with this working directory: the launcher and all that it has started."""
    alive = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd() == str(directory) and process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
    return alive


@pytest.mark.full
def test_nothing_outlives_a_launcher_that_is_killed_at_any_moment_of_its_start(cold_command):
    script = cold_command.script(f"{GANG}\nwhile True:\n    time.sleep(0.1)\n")
    most = 0
    for moment in range(20):
        process = cold_command.start("--workers", "2", "--max-restarts", "1", script)
        time.sleep(0.2 + 0.3 * moment)  # the moments that are tried; nothing is waited for
        most = max(most, len(processes_in(cold_command.directory)))
        process.kill()
        process.communicate(timeout=60)
        cold_command.wait_until(lambda: not processes_in(cold_command.directory), deadline=10)
    assert most >= 3  # some were killed with both workers there


@pytest.mark.full
def test_unread_output_does_not_end_a_run(command):
    script = command.script("""
import sys, time
from pathlib import Path
print("first", flush=True)
until = time.monotonic() + 60
while not Path("reader-has-ended").exists() and time.monotonic() < until:
    time.sleep(0.02)
for number in range(1000):
    print("line", number, flush=True)
sys.exit(3)
""")
    words = [sys.executable, "-m", "phalanx", "run", "--workers", "1", "--name", "it", script]
    with open("/dev/full", "w") as full:
        process = subprocess.Popen(
            words, cwd=command.directory, stdout=subprocess.PIPE, stderr=full, text=True
        )
    assert any("first" in line for line in process.stdout)  # and reads no further
    process.stdout.close()
    (command.directory / "reader-has-ended").touch()
    assert process.wait(120) == 3
    assert command.workers() == []
    run = command.directory / "runs" / "it"
    assert json.loads((run / "run.json").read_text())["result"]["exit_code"] == 3
    assert "line 999\n" in (run / "attempts/0/worker-0.log").read_text()
    reported = read_records(launcher_records_path(run)).records
    assert [each["exit_code"] for each in reported if each["kind"] == "run_end"] == [3]


@pytest.mark.full
def test_values_of_variables_are_written_nowhere(command):
    script = command.script("import os\nsay('came', os.environ['KEY'] == 's3cr3t')\n")
    finished = command.run("--workers", "1", "--name", "it", "--env", "KEY=s3cr3t", script)
    assert finished.code == 0
    assert finished.output() == {"came": True}
    words = [sys.executable, "-m", "phalanx", "report", "it"]
    subprocess.run(words, cwd=command.directory, check=True, capture_output=True)
    run = command.directory / "runs" / "it"
    assert "KEY" in (run / "report.html").read_text()
    kept = [path for path in run.rglob("*") if path.is_file()]
    assert not [path for path in kept if b"s3cr3t" in path.read_bytes()]


@pytest.mark.full
def test_a_taken_port_is_retried(command, monkeypatch):
    import io
    import os

    from phalanx.launcher.options import RunOptions
    from phalanx.launcher.ports import pick_free_ports
    from phalanx.launcher.resources import Machine
    from phalanx.launcher.run import LaunchContext, run
    from phalanx.launcher.showing import Showing

    script = command.script(f"{GANG}\nprint('done')\n")
    monkeypatch.chdir(command.directory)
    output, printed = io.StringIO(), []
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = [other.getsockname()[1]]

        def pick(count):
            return [*pick_free_ports(count - 1), taken.pop()] if taken else pick_free_ports(count)

        result = run(
            RunOptions(target=script, workers=2),
            LaunchContext(
                environment=os.environ,
                machine=Machine(cores=2),
                output=Showing(output),
                pick_ports=pick,
                announce=printed.append,
            ),
        )
    assert result.exit_code == 0, result.report
    assert "done" in output.getvalue()
    assert [path.name for path in sorted((result.run_dir / "attempts").iterdir())] == ["0", "1"]
    assert any("restarting" in line for line in printed)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nope.py"], "There is no script 'nope.py'"),
        (["--workers", "2", "broken.py"], "broken.py:5: SyntaxError"),
        (["-m", "nope.train"], "There is no module 'nope.train'"),
        (["--workers", "2", "--strategy", "mirrored", "good.py"], "--workers 1, or --strategy"),
        (
            ["--strategy", "multiworker", "--devices-per-worker", "cpu:2", "good.py"],
            "More devices are more workers: phalanx run --workers 2 SCRIPT",
        ),
        (
            ["--workers", "2", "--devices-per-worker", "cpu:2", "good.py"],
            "phalanx run --workers 4 SCRIPT",
        ),
        (["--max-restarts", "-1", "good.py"], "--max-restarts must be at least 0"),
        (["--workers", "many", "good.py"], "--workers"),
    ],
)
def test_what_cannot_run_is_refused_at_once(command, words, says):
    command.script("x = (", "broken.py")
    command.script("pass", "good.py")
    finished = command.run(*words)
    assert finished.code == 2
    assert says in finished.err
    assert "Traceback" not in finished.err
    assert not (command.directory / "runs").exists()


def test_a_failure_names_the_batch_of_its_own_fit_and_says_long_messages_once(command):
    script = command.script(
        "import keras, numpy as np\n"
        "long = 'a message of many words, ' * 8\n"
        "class Wrong(keras.layers.Layer):\n"
        "    def call(self, x):\n"
        "        raise ValueError(long)\n"
        "def model(layer):\n"
        "    made = keras.Sequential([layer, keras.layers.Dense(1)])\n"
        "    made.compile('sgd', 'mse')\n"
        "    return made\n"
        "x, y = np.ones((8, 3), 'float32'), np.ones((8, 1), 'float32')\n"
        "model(keras.layers.Dense(2)).fit(x, y, batch_size=8, verbose=0)\n"
        "model(Wrong()).fit(x[:, :2], y, batch_size=8, verbose=0)\n"
    )
    finished = command.run("--workers", "2", "--tee", "none", script)
    assert finished.code == 1
    assert finished.err.count("a message of many words, " * 7) == 1, finished.err
    assert "float32[samples, 3]" not in finished.err
    assert "\x1b" not in finished.err
    first, *_ = re.findall("failed first: .*", finished.err)
    assert "in step 1: " in first
    assert "a message of many words" in first


@pytest.mark.full
def test_who_is_done_first_waits_for_the_others(command):
    script = command.script(
        f"{GANG}\nif rank == 1:\n    time.sleep(4)\nsay('left', time.time())\n"
        "import atexit\natexit.register(lambda: say('exit', time.time()))\n"
    )
    finished = command.run("--workers", "2", "--tee", "all", script)
    assert finished.code == 0, finished.err
    assert finished.output(0)["exit"] > finished.output(1)["left"]
