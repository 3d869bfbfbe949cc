"""Child processes of tests receive signals, however the test session is started."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
DEAF = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
TEST = """
import os
import signal
import subprocess

import pytest

def masks():
    status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout
    fields = dict(line.split(":", 1) for line in status.splitlines())
    # What the C library keeps for itself (32, 33) no program can restore.
    ours = sum(1 << number - 1 for number in signal.valid_signals())
    return {name: int(fields[name], 16) & ours for name in ("SigBlk", "SigIgn")}

def test_a_child_process_receives_signals():
    assert masks() == {"SigBlk": 0, "SigIgn": 1 << signal.SIGHUP - 1}

def test_so_does_the_session():
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.process
def test_a_session_that_begins_deaf_receives(tmp_path):
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "test_it.py").write_text(TEST)
    pytest = ["-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", ".", "test_it.py"]
    done = subprocess.run(
        [sys.executable, "-c", DEAF, *pytest],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
