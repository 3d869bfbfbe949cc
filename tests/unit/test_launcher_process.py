"""A worker's handle, on real small processes."""

import os
import signal
import sys

import pytest

from phalanx.launcher.process import WorkerProcess
from process_end import wait_until_ended

pytestmark = pytest.mark.process

LEAVES_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
"""


def test_a_worker_that_is_asked_when_it_is_dead_leaves_no_family(tmp_path):
    log = tmp_path / "worker.log"
    worker = WorkerProcess((sys.executable, "-c", LEAVES_A_CHILD), env=os.environ, log=log)
    # It is dead, and no one has collected it: `poll` has not been called.
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    worker.ask(signal.SIGUSR2)
    wait_until_ended(int(log.read_text()))
    assert worker.poll() == 0
    worker.ask(signal.SIGUSR2)
