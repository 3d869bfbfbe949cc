"""Run the real command on small scripts and see that nothing stays behind."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest

DEADLINE = 300


@dataclass
class Finished:
    """A `phalanx run` that has ended."""

    code: int
    out: str
    err: str

    def output(self, rank=0):
        """The lines that a worker's script printed, `key value` each, as a mapping."""
        mark = f"[worker {rank}] SAY "
        lines = [line[len(mark) :] for line in self.out.splitlines() if line.startswith(mark)]
        return {key: json.loads(value) for key, value in (line.split(" ", 1) for line in lines)}


SAY = """
import json
def say(key, value):
    print("SAY", key, json.dumps(value), flush=True)
"""


class Command:
    """`phalanx run` in a directory of its own."""

    def __init__(self, directory: Path, environment=()):
        self.directory = directory
        self.environment = dict(environment)

    def script(self, source, name="train.py"):
        (self.directory / name).write_text(SAY + source)
        return name

    def start(self, *words, command="run"):
        env = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        env |= self.environment
        return subprocess.Popen(
            [sys.executable, "-m", "phalanx", command, *words],
            cwd=self.directory,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words, deadline=DEADLINE, command="run"):
        return self.finish(self.start(*words, command=command), deadline)

    def finish(self, process, deadline=DEADLINE):
        try:
            out, err = process.communicate(timeout=deadline)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=90)
            pytest.fail(f"no end within {deadline} s:\n{out}\n{err}")
        assert self.workers() == [], "workers were left behind"
        return Finished(process.returncode, out, err)

    def workers(self):
        """The workers of this directory's runs that are alive."""
        alive = []
        for process in psutil.process_iter():
            try:
                if "phalanx.worker" in process.cmdline() and process.cwd() == str(self.directory):
                    alive.append(process)
            except psutil.Error:
                continue
        return alive

    def wait_until(self, condition, deadline=DEADLINE):
        end = time.monotonic() + deadline
        while not condition():
            assert time.monotonic() < end, f"not so within {deadline} s"
            time.sleep(0.05)

    def logs_hold(self, text, workers=2):
        """Whether that many workers have printed `text`."""
        logs = self.directory.glob("runs/*/attempts/*/worker-*.log")
        return sum(text in log.read_text() for log in logs) == workers


@pytest.fixture(scope="session")
def command_in(shared_fork_server):
    """The command in a directory; its workers need not import TensorFlow."""
    return partial(Command, environment=shared_fork_server)


@pytest.fixture
def cold_command(tmp_path):
    """The command in a directory of this test's, as a user starts it."""
    return Command(tmp_path)


@pytest.fixture
def command(command_in, tmp_path):
    """The command in a directory of this test's."""
    return command_in(tmp_path)
