"""Workers on hosts of their own, started one by one as a supervisor on each host would."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from hosts import hosts_up, why_not

from phalanx.cluster.spec import WorkerSpec
from phalanx.launcher.failure import FailureRecord
from phalanx.launcher.run_layout import AttemptPaths

SECONDS = 600


@pytest.fixture(scope="session")
def hosts():
    """Three hosts; all cables are in when a test begins."""
    if reason := why_not():
        pytest.skip(reason)
    with hosts_up(3) as made:
        yield made


class WorkerGroup:
    """One start of a script's workers, one on each host."""

    def __init__(self, hosts, run, script, *, workers, attempt=0):
        self.hosts = hosts
        self.paths = AttemptPaths(run=run, attempt=attempt)
        self.paths.directory.mkdir(parents=True)
        addresses = tuple(f"{hosts.address(rank)}:{3000 + attempt}" for rank in range(workers))
        self.processes = [
            self._start(
                script,
                WorkerSpec(
                    rank=rank,
                    world_size=workers,
                    addresses=addresses,
                    strategy="multiworker",
                    threads=1,
                    seed=1,
                    run_dir=str(run),
                    attempt=attempt,
                ),
            )
            for rank in range(workers)
        ]

    def _start(self, script, spec):
        words = [sys.executable, "-P", "-m", "phalanx.worker", "-f", str(script)]
        environment = {
            **os.environ,
            **spec.to_environment(),
            "PYTHONUNBUFFERED": "1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        with self.paths.log(spec.rank).open("wb") as log:
            return subprocess.Popen(
                self.hosts.command(spec.rank, words),
                env=environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def log(self, rank):
        return self.paths.log(rank).read_text(errors="replace")

    def failure(self, rank):
        return FailureRecord.read(self.paths.error(rank))

    def output(self, rank, key):
        """What a script printed as `SAY key value`, the last time; None if it has not."""
        mark = f"SAY {key} "
        lines = [line for line in self.log(rank).splitlines() if line.startswith(mark)]
        return json.loads(lines[-1][len(mark) :]) if lines else None

    def until(self, condition, seconds=SECONDS):
        """Wait; returns the seconds that it took."""
        begin = time.monotonic()
        while not condition():
            logs = "\n".join(self.log(rank)[-2000:] for rank in range(len(self.processes)))
            assert time.monotonic() < begin + seconds, f"not so within {seconds} s:\n{logs}"
            assert None in self.exit_codes() or condition(), f"all have ended:\n{logs}"
            time.sleep(0.05)
        return time.monotonic() - begin

    def exit_codes(self):
        return [process.poll() for process in self.processes]

    def end(self, seconds=SECONDS):
        """Wait until each has ended on its own; returns the exit codes, by rank."""
        self.until(lambda: None not in self.exit_codes(), seconds)
        return self.exit_codes()

    def kill(self):
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def worker_group(hosts, tmp_path):
    """Starts worker groups; ends their processes and plugs all cables in when the test ends."""
    started = []

    def start(script, run="run", **options):
        started.append(WorkerGroup(hosts, tmp_path / run, script, **options))
        return started[-1]

    yield start
    for each in started:
        each.kill()
    for host in range(hosts.count):
        hosts.heal(host)
