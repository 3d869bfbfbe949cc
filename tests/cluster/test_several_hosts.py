"""`phalanx run` on several hosts: the same command on each, a cable pulled, a launcher killed."""

import os
import re
import signal
import time
from contextlib import ExitStack

import numpy as np
import pytest
from launchers import EPOCHS, SECONDS, Launchers
from small_training import IN_MEMORY, SERVED, weights
from ways import assert_weights_of_one_device

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture
def launch(hosts, tmp_path):
    with ExitStack() as stack:

        def start(name, *options, data=IN_MEMORY, count=None):
            made = Launchers(hosts, tmp_path / name, *options, data=data, count=count)
            stack.callback(made.kill)
            return made

        yield start
        for host in range(hosts.count):
            hosts.heal(host)


def test_two_hosts_train_what_one_device_does(launch):
    run = launch("two", count=2)
    assert run.end() == [0, 0], run.reported()
    assert "2 workers on 2 hosts" in run.output(0)
    assert_weights_of_one_device(run.directory)


@pytest.fixture
def undisturbed(launch):
    run = launch("whole")
    assert run.end() == [0, 0, 0], run.reported()
    assert "3 workers on 3 hosts" in run.output(0)
    return weights(run.directory)


@pytest.mark.full
def test_a_run_on_three_hosts_bears_a_pulled_cable_and_a_killed_launcher(
    hosts, launch, undisturbed
):
    run = launch("disturbed", "--max-restarts", "5", "--rendezvous-timeout", "200")
    for epoch in (2, 6):  # so that training is not over before, however fast this machine is
        (run.directory / f"hold-{epoch}").touch()
    run.until_epoch(2)
    hosts.cut(2)
    (run.directory / "hold-2").unlink()
    end = time.monotonic() + SECONDS
    while "looking for it again" not in run.output(2):  # both sides have noticed
        assert time.monotonic() < end, run.reported()
        time.sleep(0.1)
    hosts.heal(2)
    run.until_epoch(6)
    os.killpg(run.processes[1].pid, signal.SIGKILL)
    (run.directory / "hold-6").unlink()
    run.processes[1].wait()
    run.processes[1] = run.start(1)
    assert run.end() == [0, 0, 0], run.reported()
    for got, expected in zip(weights(run.directory), undisturbed, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.full
def test_data_workers_of_the_first_host_serve_workers_on_all(launch):
    served = launch("served", "--data-workers", "2", "--tee", "all", data=SERVED)
    assert served.end() == [0, 0, 0], served.reported()
    output = served.output(0)
    assert "no data service" not in output
    made_here = map(int, re.findall(r"made here \((\d+) so far\)", output))
    assert max(made_here, default=0) < 5 * EPOCHS / 2, output
    alone = launch("alone", "--tee", "all", data=SERVED)
    assert alone.end() == [0, 0, 0], alone.reported()
    assert alone.output(0).count("no data service") == 3
    for got, expected in zip(weights(served.directory), weights(alone.directory), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.full
def test_parameter_servers_on_hosts_continue_when_a_worker_is_killed(launch):
    options = ("--strategy", "parameter-server", "--workers", "3", "--ps", "2")
    run = launch("servers", *options)
    (run.directory / "hold").touch()  # however fast this machine is
    run.until_epoch(0)
    os.kill(run.pid_of(2), signal.SIGKILL)  # of host 1; 0 is the chief
    (run.directory / "hold").unlink()
    assert run.end() == [0, 0, 0], run.reported()
    assert "worker 2 failed: " in run.output(0)
    assert "starting a replacement" in run.output(0)
    weights(run.directory)


@pytest.mark.full
def test_a_host_that_does_not_come_is_named(launch, hosts):
    hosts.cut(1)
    run = launch("alone", "--rendezvous-timeout", "15")
    assert all(run.end())
    assert "found no sign of it: start the same command on each" in run.output(0)
    assert f"{hosts.address(1)} (1)" in run.output(0)
