"""One contender's processes, asked for blocks of steps over pipes."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from step_time.environment import BENCHMARKS
from step_time.laps import Lap
from step_time.place import Place


class ContenderFailedError(Exception):
    """The contender raised, died or did not answer; the text is fit for a table."""


class ContenderGroup:
    """`world_size` processes of `contender`, idle until `block` is called."""

    def __init__(self, contender: str, world_size: int, python: Path, logs: Path) -> None:
        ports = _free_ports(world_size)
        self.contender = contender
        self._logs = [logs / f"{contender}-{world_size}-{rank}.log" for rank in range(world_size)]
        self._processes = [
            _start(contender, Place(rank=rank, world_size=world_size, ports=ports), python, log)
            for rank, log in enumerate(self._logs)
        ]

    def wait_until_ready(self, seconds: float = 120) -> None:
        """Until every process has imported and set up what it needs."""
        self._answers(seconds)

    def block(self, model: str, steps: int, warm_up: int, seconds: float = 300) -> Lap:
        """A step by the slowest process's clock, and what all processes spent together.

        Raises:
            ContenderFailedError: a process failed; the worker group is of no more use.
        """
        command = json.dumps({"model": model, "steps": steps, "warm_up": warm_up})
        for process in self._processes:
            process.stdin.write(command + "\n")
            process.stdin.flush()
        answers = self._answers(seconds)
        return Lap(
            wall=max(a["wall"] for a in answers),
            cpu=sum(a["cpu"] for a in answers),
            memory=max(a["memory"] for a in answers),
            written=sum(a["written"] for a in answers),
        )

    def close(self) -> None:
        """End all processes; none is left."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            process.stdin.close()
            process.stdout.close()

    def _answers(self, seconds: float) -> Sequence[dict]:
        end = time.monotonic() + seconds
        waiting = {p.stdout: rank for rank, p in enumerate(self._processes)}
        answers: dict[int, dict] = {}
        while waiting:
            ready, _, _ = select.select(list(waiting), [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise ContenderFailedError(f"no answer within {seconds:g} s")
            for stream in ready:
                line = stream.readline()
                answer = json.loads(line) if line else {"error": "died"}
                if "error" in answer:
                    raise ContenderFailedError(answer["error"])
                answers[waiting.pop(stream)] = answer
        return [answers[rank] for rank in sorted(answers)]


def _start(contender: str, place: Place, python: Path, log: Path) -> subprocess.Popen:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1", "KERAS_BACKEND": "tensorflow"}
    environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    with log.open("w") as output:
        return subprocess.Popen(
            [python, "-m", "step_time.serve", contender, place.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            env={**environment, **quiet, "PYTHONPATH": str(BENCHMARKS)},
        )


def _free_ports(count: int) -> tuple[int, ...]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return tuple(listener.getsockname()[1] for listener in sockets)
