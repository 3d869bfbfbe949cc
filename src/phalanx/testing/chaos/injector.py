"""Lets the faults of one worker happen as its training comes to their steps."""

from __future__ import annotations

import builtins
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from phalanx.cluster.spec import WorkerSpec
from phalanx.cluster.tf_config_parser import TFConfig
from phalanx.testing.chaos.fault_types import (
    DropNetwork,
    Exit,
    Freeze,
    Kill,
    Plan,
    Raise,
    SlowDown,
    WorkerFault,
)

_BETWEEN_CUTS = 0.02


def apply_fault(fault: WorkerFault, peers: Collection[int]) -> None:
    """Do it, now; of `SlowDown` nothing, which is more than one moment.

    Args:
        fault: what to do.
        peers: the ports of all workers; empty where they are not known.
    """
    match fault:
        case Kill():
            os.kill(os.getpid(), signal.SIGKILL)
        case Exit():
            os._exit(fault.code)
        case Freeze():
            stop(fault.seconds)
        case Raise():
            raise getattr(builtins, fault.error)(fault.message)
        case DropNetwork():
            drop_network(fault.seconds, peers)


def stop(seconds: float | None) -> None:
    """Stop by SIGSTOP, with the heartbeat; another process must end that."""
    waker = None
    if seconds is not None:
        # In this process's group, so that whoever ends the worker ends it too.
        program = f"import os, time; time.sleep({seconds!r}); os.kill({os.getpid()}, 18)"
        waker = subprocess.Popen([sys.executable, "-S", "-E", "-c", program])
    os.kill(os.getpid(), signal.SIGSTOP)
    if waker is not None:
        waker.wait()


def drop_network(seconds: float | None, ports: Collection[int]) -> None:
    """Shut connections now, and from a thread those that are made within `seconds`."""
    shut_connections(ports)
    end = math.inf if seconds is None else time.monotonic() + seconds

    def restore() -> None:
        while time.monotonic() < end:
            shut_connections(ports)
            time.sleep(_BETWEEN_CUTS)

    threading.Thread(target=restore, name="phalanx-chaos-network", daemon=True).start()


def shut_connections(ports: Collection[int]) -> int:
    """Shut this process's TCP connections; needs no special rights.

    Args:
        ports: those that a connection must have at one of its ends; empty for any.

    Returns:
        How many there were.
    """
    shut = 0
    for each in psutil.Process().net_connections(kind="tcp"):
        if each.status != psutil.CONN_ESTABLISHED or each.fd < 0:
            continue
        if ports and not {each.laddr.port, each.raddr.port} & set(ports):
            continue
        with suppress(OSError), socket.socket(fileno=os.dup(each.fd)) as connection:
            connection.shutdown(socket.SHUT_RDWR)
            shut += 1
    return shut


def pause(seconds: float) -> None:
    """What `SlowDown` does at each of its steps."""
    time.sleep(seconds)


_log = logging.getLogger(__name__)

Act = Callable[[WorkerFault, Collection[int]], None]


class Injector:
    """Follows one worker's steps."""

    def __init__(
        self,
        plan: Plan,
        rank: int,
        marks: Marks,
        *,
        peers: Collection[int] = (),
        do: Act = apply_fault,
        sleep: Callable[[float], None] = pause,
    ) -> None:
        """Get ready; the first call of `reached` says where training begins.

        Args:
            plan: the whole plan; other workers' faults are left to them.
            rank: this worker.
            marks: what has happened in the run already.
            peers: the ports of all workers.
            do: does a fault.
            sleep: lets seconds pass.
        """
        self._faults = [
            (f"{number}-{type(fault).__name__}", fault)
            for number, fault in enumerate(plan)
            if isinstance(fault, WorkerFault) and fault.worker == rank
        ]
        self._marks = marks
        self._peers = peers
        self._do = do
        self._sleep = sleep
        self._step: int | None = None
        self._slow: list[tuple[int, SlowDown]] = []

    def reached(self, step: int) -> None:
        """Training has come to `step`; the faults of the steps since the last call happen.

        A step smaller than the last is another training's beginning. What lies before the
        beginning of a training is passed over: a run that continued from step 20 does not meet
        the faults of the first 20 steps.
        """
        before, self._step = self._step, step
        if before is None or step <= before:
            return
        for name, fault in self._faults:
            if before < fault.step <= step and (fault.every_attempt or self._marks.make(name)):
                _log.warning("chaos: %s", fault)
                if isinstance(fault, SlowDown):
                    self._slow.append((fault.step + fault.steps, fault))
                self._do(fault, self._peers)
        for end, slow in self._slow:
            steps = min(step + 1, end) - max(before + 1, slow.step)
            if steps > 0:
                self._sleep(slow.seconds * steps)


def rank_here(environment: Mapping[str, str]) -> int:
    """This process's rank: the launcher's word, else TF_CONFIG's, else 0."""
    spec = WorkerSpec.from_environment(environment)
    if spec is not None:
        return spec.rank
    config = TFConfig.from_environment(environment)
    return 0 if config is None else config.task_index


def peer_ports(environment: Mapping[str, str]) -> frozenset[int]:
    """The ports of all workers, as TF_CONFIG names them."""
    config = TFConfig.from_environment(environment)
    tasks = () if config is None else (t for job in config.cluster.values() for t in job)
    return frozenset(int(address.rpartition(":")[2]) for address in tasks)


def injector_here(plan: Plan, marks: Marks, rank: int | None = None) -> Injector:
    """For this process, by its environment."""
    rank = rank_here(os.environ) if rank is None else rank
    return Injector(plan, rank, marks, peers=peer_ports(os.environ))


class Marks:
    """Remembers in a directory, or only for this process where there is none."""

    def __init__(self, directory: Path | None) -> None:
        """Begin with what lies in `directory`."""
        self._directory = directory
        self._made: set[str] = set()

    def make(self, name: str) -> bool:
        """Remember `name`; False if that was done before."""
        if name in self._made:
            return False
        self._made.add(name)
        if self._directory is None:
            return True
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            os.close(os.open(self._directory / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True


def marks_of_run(environment: Mapping[str, str]) -> Marks:
    """The marks in the run's directory; in memory where `phalanx run` started no worker."""
    spec = WorkerSpec.from_environment(environment)
    if spec is None or spec.run_dir is None:
        return Marks(None)
    return Marks(Path(spec.run_dir) / "chaos")
