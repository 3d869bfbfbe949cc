"""Whether a process ends with the one that started it, at whatever moment that goes."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from phalanx.launcher.parent_death import LAUNCHER_VARIABLE, tied_to_this_process

pytestmark = pytest.mark.process

TIED = (
    "import os; from phalanx.launcher import parent_death; "
    "parent_death.die_with_launcher(os.environ)\n"
)


def python(source, env):
    words = [sys.executable, "-c", TIED + source]
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)


def test_a_launcher_that_has_ended_already_is_noticed():
    env = {**os.environ, LAUNCHER_VARIABLE: str(os.getppid())}
    assert python("print('on')", env).returncode == -signal.SIGKILL


def test_a_launcher_that_is_there_is_handed_on_to_no_one():
    ended = python(
        f"print(os.environ.get({LAUNCHER_VARIABLE!r}))", tied_to_this_process(os.environ)
    )
    assert (ended.returncode, ended.stdout) == (0, "None\n")


@pytest.mark.parametrize(
    "module", ["phalanx.worker", "phalanx.worker.forkserver", "phalanx.worker.data_server"]
)
def test_it_is_asked_before_anything_of_size_is_imported(module):
    # Not this process, which has started it: it ends as soon as it asks.
    env = {**os.environ, LAUNCHER_VARIABLE: str(os.getppid())}
    words = [sys.executable, "-X", "importtime", "-P", "-m", module, "-f", "train.py"]
    ended = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert "phalanx.launcher.parent_death" in imported
    assert not imported & {"numpy", "tensorflow", "keras", "phalanx.worker.bootstrap"}


class Launched:
    """A real `phalanx run` with all that it can start, and its processes."""

    def __init__(self, directory):
        self.directory = directory
        (directory / "train.py").write_text("import time\nwhile True: time.sleep(0.05)\n")
        words = ["--workers", "2", "--data-workers", "1", "--max-restarts", "1", "--name", "it"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "phalanx", "run", *words, "train.py"],
            cwd=directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def others(self):
        """All that this launcher has started, whoever has adopted it since."""
        found = []
        for process in psutil.process_iter():
            try:
                at_work = (
                    process.status() != psutil.STATUS_ZOMBIE and process.pid != self.process.pid
                )
                if at_work and process.cwd() == str(self.directory):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def workers(self):
        """What it has started that runs by now; not what it asks in passing, as git."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return {int(pid) for pid in listed.split() if b"phalanx.worker" in command_of(pid)}


def command_of(pid):
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def first_runs(launched):
    until(lambda: launched.workers())


def third_runs(launched):
    until(lambda: len(launched.workers()) == 3)


def all_run(launched):
    until(lambda: len(launched.workers()) == 5)


def all_are_held_up_before_they_ask(launched):
    """The kernel cannot signal them: when the launcher ends, they have not called prctl yet."""
    held = set()

    def hold():
        for pid in launched.workers() - held:
            os.kill(pid, signal.SIGSTOP)
            held.add(pid)
        return len(held) == 5

    until(hold)


def workers_have_started(launched):
    attempt = launched.directory / "runs" / "it" / "attempts" / "0"
    until(lambda: len(list(attempt.glob("worker-*.stacks.txt"))) == 2)


@pytest.mark.full
@pytest.mark.parametrize(
    "moment",
    [
        first_runs,
        third_runs,
        all_run,
        all_are_held_up_before_they_ask,
        workers_have_started,
    ],
)
def test_nothing_outlives_a_launcher_that_is_killed(tmp_path, moment):
    launched = Launched(tmp_path)
    try:
        moment(launched)
    finally:
        launched.process.kill()
        launched.process.wait(60)
        for process in launched.others():
            process.send_signal(signal.SIGCONT)
    try:
        until(lambda: not launched.others(), seconds=10.0)
    finally:
        for process in launched.others():
            process.kill()
