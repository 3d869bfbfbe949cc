"""An all-reduce of two processes, on one machine or two: the workers, the result, and its cost."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from phalanx.errors import ConfigurationError
from phalanx.launcher.ports import pick_free_ports

PARAMETERS = 25_600_000
"""Those of ResNet-50, unless `--model-parameters` is given."""
BYTES = 4  # of a float32 gradient
_COUNT = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[kMB]?)")
_UNITS = {"": 1, "k": 1e3, "M": 1e6, "B": 1e9}


@dataclass(frozen=True, kw_only=True)
class Speed:
    """One all-reduce of two processes.

    Attributes:
        seconds: for a single number: the least cost of each all-reduce.
        rate: bytes per second of one process's gradients, beyond that.
    """

    seconds: float
    rate: float

    def of_a_step(self, parameters: int, workers: int = 2) -> float:
        """Seconds of a step that the all-reduce of the gradients takes.

        A ring sends 2 (n - 1) / n times the gradients over each link, which is once for two:
        https://doi.org/10.1016/j.jpdc.2008.09.002
        """
        return self.seconds + 2 * (workers - 1) / workers * parameters * BYTES / self.rate

    def to_fields(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{in_seconds(self.seconds)} for one number, {in_bytes(self.rate)}/s"


def needs(speed: Speed, parameters: int, workers: int = 2) -> str:
    """What a model of so many parameters would take, in words."""
    step = in_seconds(speed.of_a_step(parameters, workers))
    return (
        f"{in_millions(parameters)} parameters ({in_bytes(parameters * BYTES)} of gradients) take "
        f"{step} of each step on {workers} workers"
    )


def parse_parameters(text: str) -> int:
    """`25.6M` as 25600000.

    Raises:
        ConfigurationError: the text is no such number.
    """
    match = _COUNT.fullmatch(text.strip())
    count = int(float(match["number"]) * _UNITS[match["unit"] or ""]) if match else 0
    if count < 1:
        raise ConfigurationError(
            f"--model-parameters must be a number such as 1000000, 25.6M or 7B; found {text!r}."
        )
    return count


def in_seconds(seconds: float) -> str:
    """0.0123 as "12 ms"."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.2g} ms"


def in_bytes(count: float) -> str:
    """120e6 as "120 MB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"


def in_millions(count: int) -> str:
    """25600000 as "25.6 million"."""
    return f"{count / 1e6:.3g} million" if count >= 1_000_000 else f"{count:,}"


SECONDS = 180.0
"""Timeout in seconds: a loaded machine needs a minute to import TensorFlow."""
_QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "KERAS_BACKEND": "tensorflow",
    "CUDA_VISIBLE_DEVICES": "-1",
}


@dataclass(frozen=True, kw_only=True)
class AllReduceResult:
    """The result of one all-reduce worker.

    Attributes:
        speed: latency and bandwidth; None if it failed.
        error: why it failed.
    """

    speed: Speed | None = None
    error: str | None = None


class AllReduceWorker:
    """One of the two workers, a process of its own."""

    def __init__(self, index: int, addresses: Sequence[str]) -> None:
        """Start it.

        Args:
            index: which of the two this is.
            addresses: `host:port` of both.
        """
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "phalanx.diagnostics.doctor.all_reduce"),
                *(str(index), *addresses),
            ],
            env={**{k: v for k, v in os.environ.items() if k != "TF_CONFIG"}, **_QUIET},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def result(self, seconds: float = SECONDS) -> AllReduceResult:
        """Wait for its end; kill it after a timeout."""
        try:
            output, errors = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return AllReduceResult(error=f"no all-reduce finished within {seconds:.0f} s")
        with suppress(ValueError, IndexError, TypeError):
            return AllReduceResult(speed=Speed(**json.loads(output.splitlines()[-1])))
        last = errors.strip().splitlines()[-1:] or [f"exit code {self._process.returncode}"]
        return AllReduceResult(error=last[0][:300])

    def kill(self) -> None:
        """End it, if it has not ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def on_this_machine(seconds: float = SECONDS) -> AllReduceResult:
    """Run two workers on this machine."""
    addresses = [f"127.0.0.1:{port}" for port in pick_free_ports(2)]
    workers = [AllReduceWorker(index, addresses) for index in range(2)]
    end = time.monotonic() + seconds
    try:
        results = [worker.result(max(0.0, end - time.monotonic())) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    return next((one for one in results if one.error), results[0])


_SMALL, _BIG = 20, 3  # all-reduces
_FLOATS = 1 << 22  # 16 MiB, as big as the pieces of a packed all-reduce come


def main(arguments: Sequence[str]) -> int:
    """Measure as the worker with the index of the first argument, at the addresses of the rest."""
    index, *addresses = arguments
    speed, part = measure(int(index), addresses)
    print(json.dumps(speed.to_fields()), flush=True)
    # The worker that exits first breaks the last all-reduce of the other: this one may fail.
    with suppress(Exception):
        part()
    return 0


def measure(index: int, addresses: Sequence[str]) -> tuple[Speed, Callable[[], None]]:
    """The speed of all-reduces over TensorFlow's connections, and a function for one more."""
    import tensorflow as tf

    cluster = tf.train.ClusterSpec({"worker": list(addresses)})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="worker", task_id=index, rpc_layer="grpc"
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        cluster_resolver=resolver,
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        ),
    )

    def summing(size: int) -> Callable[[], None]:
        def add(held: tf.Tensor) -> tf.Tensor:
            replica = tf.distribute.get_replica_context()
            # identity: in a graph an argument is on no device, and has to be.
            total = replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(held))
            return tf.reduce_max(total)  # The sum is timed, not copies of it.

        held = tf.ones([size])
        step = tf.function(lambda held: strategy.run(add, args=(held,)))
        return lambda: step(held).numpy()

    add_one = summing(1)
    small = _seconds(add_one, _SMALL)
    big = _seconds(summing(_FLOATS), _BIG)
    return Speed(seconds=small, rate=4 * _FLOATS / max(big - small, 1e-9)), add_one


def _seconds(add: Callable[[], None], times: int) -> float:
    """The median time of one call; the first, which is traced, is left out."""
    add()
    took = []
    for _ in range(times):
        began = time.perf_counter()
        add()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
