"""Forked workers behave as fresh ones; no TensorFlow here."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from phalanx.launcher import process as launcher_process
from phalanx.launcher.forkserver import ForkedWorker, ForkServer
from phalanx.launcher.prefork import PreforkPool
from phalanx.launcher.process import WorkerProcess
from process_end import has_ended

SERVER = """
from phalanx.worker import bootstrap, forkserver
bootstrap.main = lambda arguments, environment: exec(arguments[0])
forkserver.preload = lambda names: None
forkserver.main()
"""
ENV = dict(os.environ)


def start_server(*words, **options):
    server = ForkServer.start((sys.executable, "-c", SERVER, *words), env=ENV, **options)
    server.wait_until_ready()
    return server


def fork_worker(server, source, log, **env):
    with log.open("ab") as file:
        return ForkedWorker(server, command(source), env={**ENV, **env}, output=file.fileno())


def command(source):
    return (sys.executable, "-P", "-m", "phalanx.worker", source)


@pytest.fixture(scope="module")
def server():
    server = start_server("as long as need be" * 9)
    yield server
    server.close()


@pytest.fixture
def fork(server, tmp_path):
    made = []

    def start(source, **env):
        log = tmp_path / "worker.log"
        made.append(fork_worker(server, source, log, **env))
        return made[-1], log

    yield start
    for worker in made:
        worker.signal(signal.SIGKILL)
        code_of(worker)


def code_of(worker):
    return until(worker.poll, "it does not end")


def until(answer, why):
    end = time.monotonic() + 60
    while (found := answer()) is None:
        assert time.monotonic() < end, why
        time.sleep(0.01)
    return found


def read(log, text):
    return until(lambda: log.read_text() if text in log.read_text() else None, f"no {text!r}")


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('bad')", 1),
        ("os._exit(75)", 75),
        ("os.kill(os.getpid(), 9)", -9),
        ("os.kill(os.getpid(), 15)", -15),
        ("os.kill(os.getpid(), 10)", -10),
        ("import atexit; atexit.register(os._exit, 4)", 4),
    ],
)
def test_it_ends_as_a_fresh_one(fork, source, code):
    worker, _ = fork(f"import os, sys\n{source}")
    assert code_of(worker) == code


def test_its_surroundings_are_its_own(fork):
    worker, log = fork(
        "import os, sys\n"
        "print(os.environ['FRUIT'], os.environ.get('HIDDEN'), sys.stdin.read() == '')\n"
        "print('aloud', file=sys.stderr)\n"
        "print(os.getsid(0) == os.getpid(), sys.orig_argv[3])\n"
        "print(sorted(os.listdir('/proc/self/fd'), key=int)[:3])\n"
        "print(open('/proc/self/cmdline').read().split(chr(0))[1:4])\n",
        FRUIT="apple",
    )
    assert code_of(worker) == 0
    printed = log.read_text()
    assert "apple None True\naloud\nTrue phalanx.worker\n" in printed
    assert "['0', '1', '2']" in printed
    assert "['-P', '-m', 'phalanx.worker']" in printed


def test_a_signal_reaches_its_family(fork):
    worker, log = fork(
        "import signal, subprocess, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('worker', flush=True))\n"
        "trap = 'trap \"echo child\" USR1; echo $$; while true; do sleep 0.05; done'\n"
        "subprocess.Popen(['sh', '-c', trap])\n"
        "while True: time.sleep(0.05)\n"
    )
    child = int(read(log, "\n").split()[0])
    worker.ask(signal.SIGUSR1)
    assert "child" not in read(log, "worker")
    worker.signal(signal.SIGUSR1)
    read(log, "child")
    worker.signal(signal.SIGTERM)
    assert code_of(worker) == -signal.SIGTERM
    until(lambda: True if has_ended(child) else None, "the child lives on")


def test_what_it_leaves_behind_is_ended(fork):
    worker, log = fork(
        "import subprocess\nprint('child', subprocess.Popen(['sleep', '60']).pid, flush=True)\n"
    )
    assert code_of(worker) == 0
    child = int(log.read_text().split()[-1])
    until(lambda: True if has_ended(child) else None, "the child lives on")


@pytest.mark.process
def test_when_the_server_is_killed_its_workers_end_and_fresh_ones_are_started(tmp_path):
    own = start_server()
    log = tmp_path / "log"
    source = "print('up', flush=True)\nimport time; time.sleep(60)"
    worker = fork_worker(own, source, log)
    read(log, "up")
    os.kill(own.pid, signal.SIGKILL)
    assert code_of(worker) == -signal.SIGKILL
    warm = PreforkPool()
    warm._server = own
    fresh = warm.start((sys.executable, "-c", "pass"), env=ENV, log=log)
    assert isinstance(fresh, WorkerProcess)
    assert code_of(fresh) == 0
    warm.close()


def test_the_server_continues_where_a_scheduler_reports_every_process(server, fork):
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
        os.kill(server.pid, number)
    worker, _ = fork("pass")
    assert code_of(worker) == 0


@pytest.mark.process
@pytest.mark.parametrize("other", [{"TF_FLAG": "1"}, {}])
def test_another_environment_has_a_fresh_process(server, tmp_path, other):
    warm = PreforkPool()
    warm._server = server
    env = {**ENV, **other, "TF_CONFIG": "its own", "PHALANX_WORKER_SPEC": "{}"}
    words = command("pass") if not other else (sys.executable, "-c", "pass")
    worker = warm.start(words, env=env, log=tmp_path / "log")
    assert isinstance(worker, WorkerProcess if other else ForkedWorker)
    assert code_of(worker) == 0


def test_another_command_keeps_nothing_ready():
    warm = PreforkPool()
    warm.prewarm((sys.executable, "-c", "pass"), ENV)
    assert warm._server is None
    warm.close()


class Kept:
    """A process that the kernel does not end (state D)."""

    pid = 2**22 + 1

    def poll(self):
        return None

    def wait(self, timeout=None):
        assert timeout is not None, "it waits for ever"
        raise subprocess.TimeoutExpired("fork server", timeout)

    def kill(self):
        pass

    def signal(self, number):
        pass


def test_a_fork_server_that_the_kernel_keeps_is_left(monkeypatch):
    monkeypatch.setattr(launcher_process, "AFTER_KILL", 0.1)
    control, theirs = socket.socketpair()
    with theirs:
        server, printed = ForkServer(control, seen={}, process=Kept()), []
        server.close(announce=printed.append)
    (line,) = printed
    assert f"after SIGKILL: the fork server for workers (process {Kept.pid}). " in line
