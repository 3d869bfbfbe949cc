"""One launcher for a run: a second one is refused, a killed one is replaced at once."""

import json
import signal
import socket

from phalanx.lease.lease_dir import LocalLeaseDir
from phalanx.lease.records import LEASE_DIR, head_of

WAITS = """
import time
from pathlib import Path

print("is up", flush=True)
while not Path("go").exists():
    time.sleep(0.05)
"""


def test_a_second_launcher_is_refused_and_a_killed_one_is_replaced(command):
    asked = ("--workers", "1", "--name", "it", "--resume", command.script(WAITS))
    first = command.start(*asked)
    command.wait_until(lambda: command.logs_hold("is up", workers=1))
    run_dir = command.directory / "runs" / "it"
    record = (run_dir / "run.json").read_text()

    second = command.start(*asked)
    _, err = second.communicate(timeout=120)
    assert second.returncode == 2, err
    assert f"process {first.pid} on host {socket.gethostname()} is using the run" in err
    assert "Wait for its end" in err
    assert "Traceback" not in err
    assert first.poll() is None
    assert (run_dir / "run.json").read_text() == record
    assert [each.name for each in (run_dir / "attempts").iterdir()] == ["0"]

    first.send_signal(signal.SIGKILL)
    first.communicate()
    (command.directory / "go").touch()
    third = command.run(*asked)
    assert third.code == 0, third.err
    assert "waiting up to" not in third.err
    assert json.loads((run_dir / "run.json").read_text())["result"]["exit_code"] == 0
    head = head_of(LocalLeaseDir(run_dir / LEASE_DIR))
    assert [fence for fence, _ in head.owners] == [1, 2]
