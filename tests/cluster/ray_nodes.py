"""A real Ray on loopback: a head and some nodes, each at an address of its own."""

import importlib.util
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from phalanx.launcher.ports import pick_free_ports

SECONDS, TRIES = 240, 6
STARTED = "Ray runtime started"


def why_not():
    """Why Ray cannot be started here; None where it can."""
    missing = [name for name in ("ray", "aiohttp_cors") if importlib.util.find_spec(name) is None]
    return (
        f"there is no {' and no '.join(missing)} here: scripts/install_ray.sh" if missing else None
    )


class Nodes:
    """A cluster that runs; its head takes no work."""

    def __init__(self, place):
        self._place = self._session = place
        self._port = 0
        self._processes = {}
        self.address = ""
        # Whoever has no token is refused; the client finds it here too.
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(16),
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONUNBUFFERED": "1",
            "RAY_memory_monitor_refresh_ms": "0",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }

    def start_head(self):
        """The head, at ports and in a directory of its own."""
        for number in range(TRIES):
            self._port, dashboard = pick_free_ports(2)
            self._session = self._place / str(number)
            self.address = f"http://127.0.0.1:{dashboard}"
            self._start(
                "127.0.0.1", 0, "--head", "--port", str(self._port),
                "--temp-dir", str(self._session), "--include-dashboard", "true",
                "--dashboard-host", "127.0.0.1", "--dashboard-port", str(dashboard),
            )  # fmt: skip
            if self._joins("127.0.0.1"):
                self._until(self._answers)
                return
        raise AssertionError(self.output())

    def start(self, number, cpus=1):
        """A node, at an address of its own; returns that."""
        address = f"127.0.0.{number + 1}"
        for _ in range(TRIES):
            self._start(address, cpus, "--address", f"127.0.0.1:{self._port}")
            if self._joins(address):
                return address
        raise AssertionError(self.output())

    def kill(self, address):
        """A node is lost, with all that it runs."""
        first = self._processes.pop(address)
        family = self._family(first)
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=60)
        first.wait(timeout=60)

    def end(self):
        for address in reversed(list(self._processes)):
            self.kill(address)
        for process in psutil.process_iter(["cmdline"]):  # of a head that gave itself up
            if any(str(self._place) in word for word in process.info["cmdline"] or ()):
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def log_of(self, job):
        path = self._session / "session_latest" / "logs" / f"job-driver-{job}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def state_of(self, job):
        """What Ray says of a job, without a process that asks."""
        token = {"Authorization": f"Bearer {self.environment['RAY_AUTH_TOKEN']}"}
        request = urllib.request.Request(f"{self.address}/api/jobs/{job}", headers=token)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)["status"]

    def output(self):
        return "\n".join(path.read_text()[-3000:] for path in self._place.glob("*.log"))

    def _start(self, address, cpus, *words):
        ray = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]
        with (self._place / f"{address}.log").open("wb") as log:
            self._processes[address] = subprocess.Popen(
                [
                    *(*ray, "start", *words, "--node-ip-address", address, "--block"),
                    *("--num-cpus", str(cpus), "--num-gpus", "0", "--disable-usage-stats"),
                    *("--object-store-memory", "100000000"),
                ],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _joins(self, address):
        """Ray gives up a node, and a head too, that is not there within half a minute."""
        log, process = self._place / f"{address}.log", self._processes[address]
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and process.poll() is None:
            if STARTED in log.read_text():
                return True
            time.sleep(0.2)
        self.kill(address)
        return False

    def _family(self, process):
        with suppress(psutil.NoSuchProcess):
            first = psutil.Process(process.pid)
            return [first, *first.children(recursive=True)]
        return []

    def _answers(self):
        with suppress(OSError):
            try:
                urllib.request.urlopen(f"{self.address}/api/version", timeout=5).close()
            except urllib.error.HTTPError as error:
                return error.code in (401, 403)  # It asks for the token.
            return True
        return False

    def _until(self, condition):
        end = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < end, self.output()
            assert all(one.poll() is None for one in self._processes.values()), self.output()
            time.sleep(0.2)


@contextmanager
def ray_up(nodes):
    """A head and so many nodes with a CPU each; ends what it started."""
    place = Path(tempfile.mkdtemp(prefix="phx", dir="/tmp"))  # Ray's sockets need a short path.
    made = Nodes(place)
    try:
        made.start_head()
        for number in range(1, nodes + 1):
            made.start(number)
        yield made
    finally:
        made.end()
        shutil.rmtree(place, ignore_errors=True)
