"""What a fault does to a process: real ones, which need no TensorFlow."""

import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from phalanx.testing import chaos
from phalanx.testing.chaos.injector import shut_connections

PROGRAM = """
import sys
from phalanx.testing.chaos.injector import apply_fault
from phalanx.testing.chaos.plan import parse_plan
(fault,) = parse_plan(sys.argv[1])
print("before", flush=True)
apply_fault(fault, ())
print("after", flush=True)
"""


def start(fault):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(fault)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("fault", "code", "output"),
    [
        (chaos.Kill(worker=0, step=1), -signal.SIGKILL, ["before"]),
        (chaos.Exit(worker=0, step=1, code=42), 42, ["before"]),
        (chaos.Raise(worker=0, step=1, error="LookupError", message="lost"), 1, ["before"]),
        (chaos.Freeze(worker=0, step=1, seconds=0.2), 0, ["before", "after"]),
        (chaos.DropNetwork(worker=0, step=1), 0, ["before", "after"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, chaos.Fault) else None,
)
def test_what_becomes_of_the_process(fault, code, output):
    process = start(fault)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert out.split() == output
    assert ("LookupError: lost" in err) == isinstance(fault, chaos.Raise)


def test_a_stop_without_end_lasts_until_somebody_ends_it():
    process = start(chaos.Freeze(worker=0, step=1))
    with process:
        end = time.monotonic() + 60
        while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < end
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGCONT)
        assert process.communicate(timeout=60)[0].split() == ["before", "after"]


def connected():
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        return client, server.accept()[0], server.getsockname()[1]


def test_connections_with_peers_are_shut_and_no_others():
    (ours, theirs, port), (other, others_end, _) = connected(), connected()
    with ours, theirs, other, others_end:
        assert shut_connections([port]) == 2  # both ends are in this process
        assert theirs.recv(1) == b""
        assert ours.recv(1) == b""
        other.sendall(b"x")
        assert others_end.recv(1) == b"x"
