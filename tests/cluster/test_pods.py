"""What `phalanx submit kubernetes` writes, run as Kubernetes would: its pods' commands on hosts."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from small_training import put_into, weights
from typer.testing import CliRunner
from ways import (
    IN_STEP,
    SERVERS,
    assert_path_was_taken,
    assert_weights_of_one_device,
    launchers_of_servers,
    put_small,
    wait_for_epoch,
)

from phalanx.cli.app import app

pytestmark = pytest.mark.timeout(1500)

SECONDS = 300
PODS = 2


class Pods:
    """The pods of an Indexed Job, a process each, on hosts that have and know the pods' names."""

    def __init__(self, hosts, job, directory):
        self.hosts, self.directory = hosts, directory
        spec = job["spec"]["template"]["spec"]
        (self.container,) = spec["containers"]
        self.name, self.subdomain = job["metadata"]["name"], spec["subdomain"]

    def names(self, pod):
        """/etc/hosts of a pod, which has the pod's own name, and what the Service adds."""
        known = {other: f"{self.name}-{other}.{self.subdomain}" for other in range(PODS)}
        known[pod] += f" {self.name}-{pod}"
        lines = [f"{self.hosts.address(other)} {names}" for other, names in known.items()]
        return "\n".join(["127.0.0.1 localhost", *lines, ""])

    def start(self):
        self.processes = [self._start(pod) for pod in range(PODS)]

    def _start(self, pod):
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', f"{self.name}-{pod}"]
        words = [*named, sys.executable, "-m", "phalanx", *self.container["args"]]
        reported = {one["name"]: one["value"] for one in self.container["env"]}
        with (self.directory / f"pod-{pod}.log").open("ab") as log:
            return subprocess.Popen(
                self.hosts.command(pod, words),
                env={**os.environ, **reported, "JOB_COMPLETION_INDEX": str(pod)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def codes(self):
        return [process.wait(timeout=SECONDS) for process in self.processes]

    def printed(self):
        return "\n".join(path.read_text() for path in sorted(self.directory.glob("pod-*.log")))

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def job(hosts, tmp_path):
    """Starts the pods of the job that is made with some options of `phalanx run`."""
    with ExitStack() as stack:

        def start(here, options=""):
            made = Pods(hosts, job_of(here, options), here)
            # ip netns exec puts this file in the place of /etc/hosts, on these hosts alone.
            for pod in range(PODS):
                place = Path("/etc/netns") / hosts.command(pod, [])[3]
                place.mkdir(parents=True)
                stack.callback(shutil.rmtree, place)
                (place / "hosts").write_text(made.names(pod))
            made.start()
            stack.callback(made.end)
            return made

        yield start


def job_of(here, options):
    """The Indexed Job that `phalanx submit` prints for the script in a directory."""
    words = [
        *("submit", "kubernetes", "--workers", str(PODS), "--image", "x", "--pvc", "runs"),
        *("--name", "it", "--run-dir", str(here / "runs"), "--code-source", "image", "--dry-run"),
        *("--run-options", f"--seed 1 {options}", str(here / "train.py"), str(here)),
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    *_, job = yaml.safe_load_all(result.output)
    return job


@pytest.mark.full
def test_a_pod_is_asked_to_go_and_others_come(job, tmp_path):
    here = put_into(tmp_path / "job")
    pods = job(here)
    end = time.monotonic() + SECONDS
    while not (here / "epoch-2").exists():
        assert time.monotonic() < end, pods.printed()
        assert all(process.poll() is None for process in pods.processes), pods.printed()
        time.sleep(0.2)
    pods.processes[1].send_signal(signal.SIGTERM)  # a node is drained
    # The Job's rules ignore 75, so Kubernetes makes new pods of the same indices.
    assert pods.codes() == [75, 75], pods.printed()
    assert not (here / "weights.npz").exists()

    pods.start()
    assert pods.codes() == [0, 0], pods.printed()
    assert "resuming from step" in pods.printed()
    assert len(weights(here)) == 4


@pytest.mark.full
@pytest.mark.parametrize(("options", "data"), IN_STEP)
def test_in_step_by_other_ways(job, tmp_path, options, data):
    here = put_small(tmp_path / "job", data)
    pods = job(here, options)
    assert pods.codes() == [0, 0], pods.printed()
    assert "2 workers on 2 hosts" in pods.printed()
    assert_path_was_taken(here, options)
    assert_weights_of_one_device(here, data)


@pytest.mark.full
def test_parameter_servers_in_each_pod(job, tmp_path):
    here = put_small(tmp_path / "job")
    (here / "hold").touch()
    pods = job(here, SERVERS)
    wait_for_epoch(here, pods.printed)
    assert launchers_of_servers(here, "JOB_COMPLETION_INDEX") == ["0", "1"]
    (here / "hold").unlink()
    assert pods.codes() == [0, 0], pods.printed()
    weights(here)
