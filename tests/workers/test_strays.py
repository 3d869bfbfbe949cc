"""The test session's own look at what its tests left running."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from process_end import wait_until_ended

CONFTEST = Path(__file__).parent.parent / "conftest.py"

TEST = """
import subprocess

def test_passes():
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print(process.pid, file=open("pid", "w"))
    {then}
    process.returncode = 0  # No warning from the object itself.
"""


@pytest.mark.parametrize(
    ("then", "exitcode"),
    [pytest.param("pass", 1, marks=pytest.mark.full), ("process.kill(), process.wait()", 0)],
)
def test_a_process_left_over_fails_the_session(tmp_path, then, exitcode):
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "test_it.py").write_text(TEST.format(then=then))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", ".", "test_it.py"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == exitcode, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert ("left 1 process(es) running" in done.stdout) == bool(exitcode)
    pid = int((tmp_path / "pid").read_text())
    wait_until_ended(pid)
