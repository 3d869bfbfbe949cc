"""What SIGTERM and SIGUSR1 do to a process that listens, and to one that does not."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from phalanx.launcher.preemption import SIGNALS
from phalanx.worker.preemption import Preemption

pytestmark = pytest.mark.process

START = """
import os, signal, sys, threading, time
from phalanx.worker.preemption import clear, guard, request, is_requested

def send(number=signal.SIGTERM):
    os.kill(os.getpid(), number)

def wait():
    end = time.monotonic() + 20
    while not is_requested() and time.monotonic() < end:
        time.sleep(0.01)
    return is_requested()
"""


def process(source):
    return subprocess.run(
        [sys.executable, "-c", START + source],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def scene():
    clock, ended = Clock(), []
    preemption = Preemption(clock=clock, end=ended.append)
    yield preemption, clock, ended
    preemption.clear()


def test_a_signal_is_a_request_and_a_late_second_one_is_the_end(scene):
    preemption, clock, ended = scene
    with preemption.guard():
        preemption.take(signal.SIGUSR1)
        assert preemption.is_requested()
        clock.now += 4.9  # The scheduler signals every process, and so does the launcher.
        preemption.take(signal.SIGTERM)
        assert ended == []
        clock.now += 0.2
        preemption.take(signal.SIGTERM)
        assert ended == [signal.SIGTERM]


def test_a_request_holds_until_it_is_taken_back(scene):
    preemption, _, _ = scene
    with preemption.guard(), preemption.guard():
        assert not preemption.is_requested()
        preemption.request()
    assert preemption.is_requested()
    preemption.clear()
    assert not preemption.is_requested()


STOPPED = """
with guard():
    send(signal.SIGUSR1)  # as Slurm does
    assert wait()
for number in (signal.SIGTERM, signal.SIGUSR1):
    send(number)  # as the launcher does, late

class Late:
    def __del__(self):  # as Python ends
        os.kill(os.getpid(), signal.SIGTERM)

sys.late = Late()
sys.exit(75)
"""


def test_who_has_stopped_for_a_request_is_not_ended_by_it_on_the_way_out():
    done = process(STOPPED)
    assert done.returncode == 75, done.stderr


TWICE = """
with guard():
    send()
    assert wait()
with guard():
    assert is_requested()
    clear()
send()
"""


def test_a_request_taken_back_leaves_signals_as_they_were():
    assert process(TWICE).returncode == -signal.SIGTERM


def test_handlers_are_there_while_somebody_listens(scene):
    preemption, _, _ = scene
    before = [signal.getsignal(number) for number in SIGNALS]
    with preemption.guard():
        with preemption.guard():
            pass
        assert signal.SIG_DFL not in [signal.getsignal(number) for number in SIGNALS]
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert not [t for t in threading.enumerate() if t.name == "phalanx-preemption"]


def test_a_script_keeps_its_own_handler(scene):
    preemption, _, _ = scene
    own = lambda number, frame: None  # noqa: E731
    before = signal.signal(signal.SIGUSR1, own)
    try:
        with preemption.guard():
            assert signal.getsignal(signal.SIGUSR1) is own
        assert signal.getsignal(signal.SIGUSR1) is own
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_other_signals_go_where_they_went(scene):
    preemption, _, ended = scene
    reading, writing = os.pipe()
    for fd in (reading, writing):
        os.set_blocking(fd, fd == reading)
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    old = signal.set_wakeup_fd(writing)
    try:
        with preemption.guard():
            os.kill(os.getpid(), signal.SIGUSR2)
            assert os.read(reading, 1) == bytes([signal.SIGUSR2])
        assert signal.set_wakeup_fd(old) == writing
        assert not preemption.is_requested()
    finally:
        signal.set_wakeup_fd(old)
        signal.signal(signal.SIGUSR2, before)
        os.close(reading)
        os.close(writing)
    assert ended == []


def test_outside_the_main_thread_nothing_is_changed(scene):
    preemption, _, _ = scene
    found = []

    def listen():
        with preemption.guard():
            found.append([signal.getsignal(number) for number in SIGNALS])

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert found == [[signal.getsignal(number) for number in SIGNALS]]


@pytest.mark.parametrize("number", SIGNALS)
def test_who_does_not_listen_is_ended(number):
    ended = process(f"with guard(): pass\nsend({int(number)})\ntime.sleep(600)")
    assert ended.returncode == -number


def test_who_listens_lives_on():
    ended = process("with guard():\n    send(); print(wait())\nprint('done')")
    assert (ended.returncode, ended.stdout) == (0, "True\ndone\n"), ended.stderr


def test_a_request_is_known_and_a_second_one_heeded_while_the_main_thread_is_blocked():
    # `sigwait` in C, as in a collective: no Python handler runs.
    ended = process("""
from phalanx.worker import preemption
def twice():
    send(); wait(); print("known", flush=True)
    preemption._own._clock = lambda: time.monotonic() + 10
    send()
with guard():
    threading.Thread(target=twice).start()
    signal.sigwait({signal.SIGUSR2})
""")
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, "known\n"), ended.stderr


def test_a_forked_child_that_handles_signals_itself_reports_no_one_else():
    ended = process("""
with guard():
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
        os.write(writing, b"x")
        time.sleep(600)
    os.read(reading, 1)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    time.sleep(0.2)
    print(os.waitstatus_to_exitcode(status), is_requested())
""")
    assert ended.stdout == "7 False\n", ended.stderr


def test_a_forked_child_is_ended_and_requests_nothing_of_its_parent():
    ended = process("""
with guard():
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"x")
        time.sleep(600)
    os.read(reading, 1)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), is_requested())
""")
    assert ended.stdout == f"{-signal.SIGTERM} False\n", ended.stderr


def test_the_end_does_not_wait_for_a_forked_child():
    ended = process("""
with guard():
    child = os.fork()
    if child == 0:
        time.sleep(600)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
print("done")
""")
    assert ended.stdout == "done\n", ended.stderr


def test_a_pipe_that_a_script_has_closed_is_no_longer_read():
    ended = process("""
with guard():
    reader = next(t for t in threading.enumerate() if t.name == "phalanx-preemption")
    os.close(signal.set_wakeup_fd(-1))
    reader.join(20)
    print(reader.is_alive())
    sys.stdout.flush()
    os._exit(0)
""")
    assert ended.stdout == "False\n", ended.stderr
