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
    again = ("--workers", "1", "--name", "it", command.script(WAITS))
    requested = ("--resume", *again)
    first = command.start(*requested)
    command.wait_until(lambda: command.logs_hold("is up", workers=1))
    run_dir = command.directory / "runs" / "it"
    record = (run_dir / "run.json").read_text()

    for words in (requested, again):
        second = command.start(*words)
        _, err = second.communicate(timeout=120)
        assert second.returncode == 69, err
        assert f"process {first.pid} on host {socket.gethostname()} is using the run" in err
        assert "Wait for its end" in err
        assert "Traceback" not in err
    assert first.poll() is None
    assert (run_dir / "run.json").read_text() == record
    assert [each.name for each in (run_dir / "attempts").iterdir()] == ["0"]

    first.send_signal(signal.SIGKILL)
    first.communicate()
    (command.directory / "go").touch()
    refused = command.run(*again)
    assert refused.code == 2, refused.err
    assert "--resume" in refused.err
    third = command.run(*requested)
    assert third.code == 0, third.err
    assert "waiting up to" not in third.err
    assert json.loads((run_dir / "run.json").read_text())["result"]["exit_code"] == 0
    head = head_of(LocalLeaseDir(run_dir / LEASE_DIR))
    assert [fence for fence, _ in head.owners] == [1, 2, 3]


def test_a_launcher_that_waits_in_vain_may_be_started_again(command):
    script = command.script("pass")
    for rank, who in ((0, "the launcher on localhost (1)"), (1, "the leading launcher")):
        given = ("--hosts", "127.0.0.1,localhost", "--node-rank", str(rank))
        finished = command.run(*given, "--rendezvous-timeout", "1", script)
        assert finished.code == 69, finished.err
        assert f"for {who}" in finished.err


def test_a_signal_ends_the_wait_for_a_host_at_the_start(command):
    script = command.script("pass")
    leader = command.start("--hosts", "127.0.0.1,localhost", "--node-rank", "0", script)
    command.wait_until(lambda: list((command.directory / "runs").glob(".rendezvous-*.json")))
    output = iter(leader.stderr.readline, "")
    assert any("waiting for the launcher on localhost (1)" in line for line in output)
    leader.terminate()
    finished = command.finish(leader, deadline=60)
    assert finished.code == 128 + signal.SIGTERM, finished.err
    assert "A signal ended the wait for the launcher on localhost (1)" in finished.err
    assert not list((command.directory / "runs").iterdir())


def test_a_signal_ends_the_wait_for_a_lost_host(command):
    script = command.script(WAITS)
    hosts = ("--hosts", "127.0.0.1,localhost", "--name", "it", "--max-restarts", "2")
    leader, follower = (
        command.start(*hosts, "--node-rank", str(rank), script) for rank in range(2)
    )
    command.wait_until(lambda: command.logs_hold("is up", workers=2))
    follower.kill()
    follower.communicate()
    output = iter(leader.stderr.readline, "")
    # A leader that starts first says already then that it is waiting.
    assert any("restart 1 of 2" in line for line in output)
    assert any("waiting for the launcher on localhost (1)" in line for line in output)
    leader.terminate()
    finished = command.finish(leader, deadline=60)
    assert finished.code == 128 + signal.SIGTERM, finished.err
    assert "A signal ended the wait for the launcher on localhost (1)" in finished.err
    record = json.loads((command.directory / "runs" / "it" / "run.json").read_text())
    assert record["result"]["exit_code"] == 128 + signal.SIGTERM


def test_a_launcher_of_another_command_is_refused_and_both_say_which_part_differs(command):
    script = command.script("import sys\nsay('arguments', sys.argv[1:])\n")
    common = ("--hosts", "127.0.0.1,localhost", "--name", "it", "--rendezvous-timeout", "120")

    def start(rank, key, epochs):
        given = ("--node-rank", str(rank), "--tee", "all", "--env", f"KEY={key}")
        words = (script, "--epochs", epochs, "--token", "s3cr3t")
        return command.start(*common, *given, *words)

    leader = start(0, "s3cr3t-0", "3")
    for key, epochs, part in (
        ("s3cr3t-0", "4", "the script's arguments differ (on this host: --epochs 4 --token '***')"),
        ("s3cr3t-1", "3", "the variables of --env and --env-from differ (on this host: KEY)"),
    ):
        other = start(1, key, epochs)
        _, err = other.communicate(timeout=120)
        assert other.returncode == 2, err
        assert f"rejects this one: {part}. Start the same command on all hosts" in err
        assert "s3cr3t" not in err
    right = start(1, "s3cr3t-0", "3")
    first, second = command.finish(leader), command.finish(right)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert "index 1: the script's arguments differ (on this host: --epochs 3 " in first.err
    assert "index 1: the variables of --env and --env-from differ" in first.err
    assert "s3cr3t" not in first.err
    assert first.output(1) == {"arguments": ["--epochs", "3", "--token", "s3cr3t"]}
