"""Starts the workers of a real all-reduce, here and on other hosts, and reads what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from phalanx.diagnostics.doctor.all_reduce_cost import Speed
from phalanx.launch.ports import pick_free_ports

SECONDS = 180.0
"""That it may take: a machine with much to do needs a minute to load TensorFlow."""
_QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "KERAS_BACKEND": "tensorflow",
    "CUDA_VISIBLE_DEVICES": "-1",
}


@dataclass(frozen=True, kw_only=True)
class AllReduced:
    """What came of it.

    Attributes:
        speed: how fast it was; None where it did not work.
        error: why it did not.
    """

    speed: Speed | None = None
    error: str | None = None


class AddingWorker:
    """One of the two workers, started."""

    def __init__(self, index: int, addresses: Sequence[str]) -> None:
        """Start it.

        Args:
            index: which of the two this is.
            addresses: `host:port` of both.
        """
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "phalanx.diagnostics.doctor.all_reduce_worker"),
                *(str(index), *addresses),
            ],
            env={**{k: v for k, v in os.environ.items() if k != "TF_CONFIG"}, **_QUIET},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def result(self, seconds: float = SECONDS) -> AllReduced:
        """Wait for its end, and end it where that does not come."""
        try:
            said, errors = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return AllReduced(error=f"nothing was added up within {seconds:.0f} s")
        with suppress(ValueError, IndexError, TypeError):
            return AllReduced(speed=Speed(**json.loads(said.splitlines()[-1])))
        last = errors.strip().splitlines()[-1:] or [f"exit code {self._process.returncode}"]
        return AllReduced(error=last[0][:300])

    def kill(self) -> None:
        """End it, if it has not ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def on_this_machine(seconds: float = SECONDS) -> AllReduced:
    """Two workers here."""
    addresses = [f"127.0.0.1:{port}" for port in pick_free_ports(2)]
    workers = [AddingWorker(index, addresses) for index in range(2)]
    end = time.monotonic() + seconds
    try:
        results = [worker.result(max(0.0, end - time.monotonic())) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    return next((one for one in results if one.error), results[0])
