"""Real S3 servers on this machine: moto's, and rclone's, which looks at signatures."""

import http.client
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.launcher.ports import pick_free_ports

KEY, SECRET = "test", "testtest"
CHECKSUMS = {
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}


@dataclass
class Server:
    """A server that can be killed and restarted at the same address."""

    command: list[str]
    port: int
    log: Path
    process: subprocess.Popen | None = field(default=None, repr=False)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + 240
        while not self.answers():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.05)

    def answers(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        with closing(connection), suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/")
            with connection.getresponse() as response:
                return bool(response.status)
        return False

    def kill(self):
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def options(self, key=KEY, secret=SECRET):
        """The options with which fsspec's s3 file system reaches it."""
        return {
            "key": key,
            "secret": secret,
            "endpoint_url": self.url,
            "client_kwargs": {"region_name": "us-east-1"},
            "config_kwargs": {
                "s3": {"addressing_style": "path"},
                "retries": {"max_attempts": 1},  # so that it shows what Phalanx does
                **CHECKSUMS,
            },
        }

    def environment(self):
        """The same for a command, whose file system gets no options."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_DEFAULT_REGION": "us-east-1",
            **{f"AWS_{name.upper()}": value for name, value in CHECKSUMS.items()},
        }

    def folder(self, name, protocol="s3", **options):
        return StorageDir.at(f"{protocol}://bucket/{name}", **{**self.options(), **options})


def program(name):
    others = Path(sys.executable).parent / name
    found = str(others) if others.exists() else shutil.which(name)
    assert found, f"{name} is missing: pip install -e '.[dev]'"
    return found


@contextmanager
def serving(command, port, directory):
    server = Server(command, port, directory / "log")
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def moto(tmp_path_factory):
    """moto's server, with a bucket; keeps objects in memory."""
    (port,) = pick_free_ports(1)
    command = [program("moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with serving(command, port, tmp_path_factory.mktemp("moto")) as server:
        server.folder("").filesystem.call_s3("create_bucket", Bucket="bucket")
        yield server


@pytest.fixture(scope="session")
def rclone(tmp_path_factory):
    """rclone's server on a directory: refuses wrong keys, and finds all again after its death."""
    (port,) = pick_free_ports(1)
    directory = tmp_path_factory.mktemp("rclone")
    (directory / "data" / "bucket").mkdir(parents=True)
    command = [
        program("rclone"), "serve", "s3", "--addr", f"127.0.0.1:{port}",
        # Written back before it answers, or a killed one may lose what it said was written.
        "--auth-key", f"{KEY},{SECRET}", "--vfs-cache-mode", "writes", "--vfs-write-back", "0s",
        "--config", os.devnull,
        "--cache-dir", str(directory / "cache"), str(directory / "data"),
    ]  # fmt: skip
    with serving(command, port, directory) as server:
        yield server


@pytest.fixture(params=["moto", "rclone"])
def s3(request):
    """Each of the servers."""
    return request.getfixturevalue(request.param)
