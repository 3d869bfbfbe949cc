"""`phalanx submit slurm` on a real Slurm: cancelled, a node lost, and the right answer."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from slurm import slurm_up, why_not
from small_training import put_into, weights
from ways import (
    IN_STEP,
    SERVERS,
    assert_path_was_taken,
    assert_weights_of_one_device,
    launchers_of_servers,
    put_small,
    wait_for_epoch,
)

pytestmark = pytest.mark.timeout(1500)

SECONDS = 420


@pytest.fixture
def slurm():
    if reason := why_not():
        pytest.skip(reason)
    # Not tmp_path: the sockets below it have room for 108 bytes of path.
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as place,
        slurm_up(Path(place), nodes=3) as made,
    ):
        yield made


def phalanx(slurm, directory, *words):
    environment = {**os.environ, "SLURM_CONF": str(slurm.config), "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", *words],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def wait_for(what, log, slurm=None):
    end = time.monotonic() + SECONDS
    while not what():
        if time.monotonic() >= end:
            output = log.read_text() if log.exists() else "nothing was said"
            raise AssertionError(f"{output}\n{slurm.reported() if slurm else ''}")
        time.sleep(0.2)


@pytest.mark.full
def test_asked_to_stop_and_a_node_lost(slurm, tmp_path):
    here, alone = put_into(tmp_path / "job"), put_into(tmp_path / "alone")
    log = submit(slurm, here)
    (submitted,) = slurm.call("squeue", "--noheader", "--format", "%i").split()

    wait_for(lambda: slurm.state(submitted) == "RUNNING", log)
    assert "RUNNING" in phalanx(slurm, here, "status", "it")
    wait_for((here / "epoch-2").exists, log)
    slurm.call("scancel", "--signal=USR1", submitted)  # as Slurm does before the time is over
    wait_for(lambda: slurm.restarts(submitted) == 1, log)
    assert not (here / "weights.npz").exists()
    begin_again(slurm, submitted, log)

    reached = len(list(here.glob("epoch-*")))
    wait_for((here / f"epoch-{reached + 2}").exists, log)
    nodes = f"NodeName={slurm.names[1]}"
    slurm.call("scontrol", "update", nodes, "State=DOWN", "Reason=test")
    wait_for(lambda: slurm.restarts(submitted) == 2, log)
    begin_again(slurm, submitted, log)

    wait_for_the_end(slurm, log)
    assert "resuming run it" in phalanx(slurm, here, "logs", "it")

    phalanx(slurm, alone, "run", "--cluster", "none", "--seed", "1", "train.py", str(alone))
    for one, two in zip(weights(alone), weights(here), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("options", "data"), IN_STEP)
def test_workers_train_in_step(slurm, tmp_path, options, data):
    here = put_small(tmp_path / "job", data)
    log = submit(slurm, here, options)
    wait_for_the_end(slurm, log)
    assert "2 workers on 2 hosts" in phalanx(slurm, here, "logs", "it")
    assert_path_was_taken(here, options)
    assert_weights_of_one_device(here, data)


@pytest.mark.full
def test_parameter_servers_on_each_node(slurm, tmp_path):
    here = put_small(tmp_path / "job")
    (here / "hold").touch()
    log = submit(slurm, here, SERVERS)
    wait_for_epoch(here, log.read_text)
    assert launchers_of_servers(here, "SLURM_NODEID") == ["0", "1"]
    (here / "hold").unlink()
    wait_for_the_end(slurm, log)
    weights(here)


def submit(slurm, here, options=""):
    """Submit a training to two nodes; the file with what its launchers say."""
    phalanx(
        slurm, here, "submit", "slurm", "--nodes", "2", "--workers-per-node", "1",
        "--name", "it", "--run-options", f"--seed 1 {options}", "train.py", str(here),
    )  # fmt: skip
    return here / "runs" / "it.log"


def wait_for_the_end(slurm, log):
    (submitted,) = slurm.call("squeue", "--noheader", "--states=all", "--format", "%i").split()
    wait_for(lambda: slurm.state(submitted) in ("COMPLETED", "FAILED"), log, slurm)
    assert slurm.state(submitted) == "COMPLETED", log.read_text()


def begin_again(slurm, job, log):
    """Slurm waits for two minutes before it starts a job again; here it waits for seconds.

    For a reason: a node that ends a job refuses what was started within that same second.
    """
    wait_for(lambda: slurm.state(job) == "PENDING", log)
    slurm.call("scontrol", "update", f"JobId={job}", "StartTime=now+3")
    wait_for(lambda: slurm.state(job) == "RUNNING", log)
