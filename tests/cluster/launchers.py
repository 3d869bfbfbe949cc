"""The same `phalanx run` on each of several hosts."""

import json
import os
import signal
import subprocess
import sys
import time

from small_training import IN_MEMORY, put_into

SECONDS = 600
EPOCHS = 12


class Launchers:
    """The same command on each host."""

    def __init__(self, hosts, directory, *options, data=IN_MEMORY, count=None):
        self.hosts = hosts
        count = count or hosts.count
        self.directory = put_into(directory, epochs=EPOCHS, every=8, data=data)
        script = directory / "train.py"
        names = ",".join(hosts.address(host) for host in range(count))
        self.words = [
            sys.executable, "-m", "phalanx", "run", "--hosts", names, "--name", "it",
            "--run-dir", str(directory / "runs"), "--seed", "1", *options,
            str(script), str(directory),
        ]  # fmt: skip
        self.processes = [self.start(host) for host in range(count)]

    def start(self, host):
        with (self.directory / f"host-{host}.log").open("ab") as log:
            return subprocess.Popen(
                self.hosts.command(host, self.words),
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def output(self, host):
        return (self.directory / f"host-{host}.log").read_text(errors="replace")

    def pid_of(self, rank):
        """A worker's process: hosts have networks of their own here, and one list of processes."""
        records = self.directory / "runs" / "it" / "records" / "launcher.jsonl"
        found = [json.loads(line) for line in records.read_text().splitlines()]
        (started,) = (record for record in found if record["kind"] == "attempt_start")
        return next(worker["pid"] for worker in started["workers"] if worker["rank"] == rank)

    def until_epoch(self, epoch):
        end = time.monotonic() + SECONDS
        while not (self.directory / f"epoch-{epoch}").exists():
            assert time.monotonic() < end, self.reported()
            assert None in [each.poll() for each in self.processes], self.reported()
            time.sleep(0.05)

    def end(self):
        end = time.monotonic() + SECONDS
        while None in (codes := [each.poll() for each in self.processes]):
            assert time.monotonic() < end, self.reported()
            time.sleep(0.05)
        return codes

    def reported(self):
        return "\n".join(self.output(host)[-3000:] for host in range(len(self.processes)))

    def kill(self):
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
