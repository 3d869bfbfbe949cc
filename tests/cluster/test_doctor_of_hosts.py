"""`phalanx doctor --cluster` on three hosts: the slow link and the broken one are named."""

import json
import os
import signal
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.full, pytest.mark.timeout(1500)]

SECONDS = 500
MOST = ("rate", "4mbit", "burst", "32kb", "latency", "400ms")


@pytest.fixture
def cables(hosts):
    """Between hosts 1 and 2 a slow one; between 0 and 2 one that is broken."""
    hosts.slow(1, 2, *MOST)
    hosts.part(0, 2)
    yield hosts
    hosts.reconnect(1, 2)
    hosts.reconnect(0, 2)


@pytest.fixture
def doctors(cables, tmp_path):
    """Starts the same command on each host; gives their processes."""
    started = []

    def start(*options):
        names = ",".join(cables.address(host) for host in range(cables.count))
        words = [
            *(sys.executable, "-m", "phalanx", "doctor", "--cluster", "--hosts", names),
            *("--run-dir", str(tmp_path / "runs"), *options),
        ]
        for host in range(cables.count):
            with (tmp_path / f"host-{host}.log").open("wb") as log:
                started.append(
                    subprocess.Popen(
                        cables.command(host, words),
                        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        text=True,
                        start_new_session=True,
                    )
                )
        return started

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_the_slow_link_and_the_broken_one_are_named(cables, doctors, tmp_path):
    leader, near, far = doctors("--json", "--model-parameters", "1M", "--rendezvous-timeout", "300")
    output, _ = leader.communicate(timeout=SECONDS)
    logs = "\n".join(path.read_text() for path in sorted(tmp_path.glob("host-*.log")))
    found = json.loads(output)
    a, b, c = (f"{cables.address(host)} ({host})" for host in range(3))
    links = [result for result in found["results"] if result["check"] == "link"]
    (broken,) = (one for one in links if one["verdict"] == "error")
    assert broken["what"].startswith((f"broken: {c} and {a} do not", f"broken: {a} and {c} do not"))
    assert "timed out" in broken["what"]
    slow = [one["what"] for one in links if one["verdict"] == "warning"]
    assert any(one.startswith(f"slow: {b} and {c}:") for one in slow), output + logs
    (added,) = (one for one in found["results"] if one["check"] == "all-reduce")
    assert added["verdict"] == "ok", added
    assert added["what"].startswith(f"{a} with {b}: ")
    assert {one["host"] for one in found["results"]} == {None, a, b}
    assert found["fit"] is False
    assert [process.wait(timeout=SECONDS) for process in (leader, near)] == [1, 1]
    assert far.wait(timeout=SECONDS), "it cannot know"
    assert "does not reach the leading doctor on" in (tmp_path / "host-2.log").read_text()
