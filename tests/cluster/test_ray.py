"""`phalanx submit ray` on a real Ray: a node lost, another comes, and the right answer."""

import json
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from ray_nodes import ray_up, why_not
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

SECONDS, EVERY = 420, 20


@pytest.fixture(scope="module")
def ray():
    if reason := why_not():
        pytest.skip(reason)
    with ray_up(2) as made:
        yield made


class Job:
    """A run that is submitted from a directory."""

    def __init__(self, ray, directory, name="it"):
        self.ray, self.directory, self.name = ray, directory, name

    def phalanx(self, *words, environment=None):
        done = subprocess.run(
            [sys.executable, "-m", "phalanx", *words],
            cwd=self.directory,
            env=environment or self.ray.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def submit(self, *options, run_options=""):
        self.phalanx(
            *("submit", "ray", "--address", self.ray.address, "--python", sys.executable),
            *("--name", self.name, "--run-options", f"--seed 1 {run_options}", *options),
            *("train.py", str(self.directory)),
        )

    def log(self):
        """What `phalanx logs` prints, without a process for each look."""
        note = self.directory / "runs" / f"{self.name}.job.json"
        return self.ray.log_of(json.loads(note.read_text())["job"]) if note.exists() else ""

    def state(self):
        return self.phalanx("status", self.name).split()[0]

    def until(self, what):
        end = time.monotonic() + SECONDS
        look = time.monotonic() + EVERY
        while not what():
            if time.monotonic() > look:
                assert self.state() in ("PENDING", "RUNNING"), self.log()
                look = time.monotonic() + EVERY
            assert time.monotonic() < end, self.log() + self.ray.output()
            time.sleep(0.2)

    def until_said(self, text):
        self.until(lambda: text in self.log())

    def until_it_ends(self):
        end = time.monotonic() + SECONDS
        note = self.directory / "runs" / f"{self.name}.job.json"
        job = json.loads(note.read_text())["job"]
        while self.ray.state_of(job) in ("PENDING", "RUNNING"):
            assert time.monotonic() < end, self.log()
            time.sleep(0.5)
        return self.state()

    def steps_of_checkpoints(self):
        lines = (
            (self.directory / f"runs/{self.name}/records/worker-0.jsonl").read_text().splitlines()
        )
        return [one["step"] for one in map(json.loads, lines) if one["kind"] == "checkpoint"]


@pytest.mark.full
@pytest.mark.parametrize(("options", "data"), IN_STEP)
def test_workers_train_in_step(ray, tmp_path, options, data):
    job = Job(ray, put_small(tmp_path / "job", data))
    job.submit("--workers", "2", run_options=options)
    assert job.until_it_ends() == "SUCCEEDED", job.log()
    assert "2 workers on 2 hosts" in job.log()
    assert_path_was_taken(job.directory, options)
    assert_weights_of_one_device(job.directory, data)


@pytest.mark.full
def test_parameter_servers_on_each_node(ray, tmp_path):
    job = Job(ray, put_small(tmp_path / "job"))
    (job.directory / "hold").touch()
    job.submit("--workers", "2", run_options=SERVERS)
    wait_for_epoch(job.directory, job.log)
    assert launchers_of_servers(job.directory, "PHALANX_RAY_NODE_RANK") == ["0", "1"]
    (job.directory / "hold").unlink()
    assert job.until_it_ends() == "SUCCEEDED", job.log()
    weights(job.directory)


@pytest.mark.full
def test_a_node_is_lost_and_another_comes(ray, tmp_path):
    job = Job(ray, put_into(tmp_path / "job"))
    here = job.directory
    job.submit("--workers", "1:2", "--placement-timeout", "20")
    job.until_said("2 launchers on 127.0.0.")
    job.until((here / "epoch-2").exists)
    leader = re.findall(r"2 launchers on ([\d.]+),", job.log())[-1]
    (here / "hold").touch()  # Training is slow, so that it is not over too soon.
    ray.kill(leader)
    job.until_said(f"lost the launcher on {leader} (0): resuming from the last checkpoint")
    job.until_said("1 launcher on 127.0.0.")
    assert ", 1 fewer than wanted" in job.log()

    ray.start(3)
    job.until_said("there is room for all launchers again")
    (here / "hold").unlink()
    assert job.until_it_ends() == "SUCCEEDED", job.log()
    log = job.phalanx("logs", "it")
    assert "restarting with all launchers: resuming from the last checkpoint" in log
    assert "resuming run it: 2 workers on 2 hosts" in log
    assert "resuming run it: 1 worker" in log

    alone = Job(ray, put_into(tmp_path / "alone"))
    words = ("run", "--cluster", "none", "--seed", "1", "train.py", str(alone.directory))
    alone.phalanx(*words, environment={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"})
    for one, two in zip(weights(alone.directory), weights(here), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)


@pytest.mark.full
def test_a_job_is_cancelled(ray, tmp_path):
    job = Job(ray, put_into(tmp_path / "cancelled", epochs=2000), "other")
    job.submit("--workers", "1")
    job.until((job.directory / "epoch-1").exists)
    job.phalanx("cancel", "other")
    assert job.until_it_ends() == "STOPPED"
    saved = job.steps_of_checkpoints()
    last = max(int(path.name.split("-")[1]) for path in job.directory.glob("epoch-*"))
    assert saved[-1] >= 5 * (last + 1), "it has saved where it stopped"
