"""Run a function in real worker processes that form a cluster."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any, TypeVar

from phalanx.cluster.spec import WORKER_VARIABLE, DeviceSpec, WorkerSpec
from phalanx.cluster.strategies import StrategyName
from phalanx.errors import OptionError
from phalanx.testing.errors import GangFailedError, GangTimeoutError
from phalanx.testing.pickling import dump_call
from phalanx.testing.ports import free_ports
from phalanx.testing.process import ForkServer, WorkerProcess
from phalanx.testing.worker import Job, Returned

T = TypeVar("T")

GRACE_SECONDS = 0.5
"""How long, after the first failure, the others may still report theirs."""

PORT_ATTEMPTS = 4
"""How often a gang is started before a taken port counts as its failure."""

_PORT_TAKEN = ("Could not start gRPC server", "Address already in use")


def run_gang(
    function: Callable[..., T],
    workers: int = 2,
    *,
    args: Sequence[Any] = (),
    deadline: float = 60.0,
    seed: int | None = None,
    devices: DeviceSpec | None = None,
    strategy: StrategyName | None = "multiworker",
    env: Mapping[str, str] | None = None,
) -> list[T]:
    """Call `function(*args)` in each of `workers` processes that form a cluster.

    Args:
        function: what each worker calls; lambdas and closures work.
        workers: the number of processes.
        args: the arguments, the same for every worker.
        deadline: seconds for everything, after which all stacks are dumped and all is killed.
        seed: given to `keras.utils.set_random_seed` on every worker.
        devices: the devices of each worker.
        strategy: entered before the call, for the whole process; None leaves it to `function`.
        env: environment variables for the workers, besides this process's own.

    Returns:
        What `function` returned on each worker, by rank.

    Raises:
        GangFailedError: a worker raised or died; names the earliest.
        GangTimeoutError: the deadline passed; shows every worker's stacks.
    """
    return _run(
        function,
        workers,
        args=args,
        deadline=deadline,
        seed=seed,
        devices=devices,
        strategy=strategy,
        env=env,
    )


def run_alone(
    function: Callable[..., T],
    *,
    args: Sequence[Any] = (),
    deadline: float = 60.0,
    seed: int | None = None,
    devices: DeviceSpec | None = None,
    strategy: StrategyName | None = None,
    env: Mapping[str, str] | None = None,
) -> T:
    """Call `function(*args)` in one fresh process, with no cluster; see `run_gang`."""
    (result,) = _run(
        function,
        1,
        args=args,
        deadline=deadline,
        seed=seed,
        devices=devices,
        strategy=strategy,
        env=env,
    )
    return result


def _run(
    function: Callable[..., T],
    workers: int,
    *,
    args: Sequence[Any] = (),
    deadline: float = 60.0,
    seed: int | None = None,
    devices: DeviceSpec | None = None,
    strategy: StrategyName | None = "multiworker",
    env: Mapping[str, str] | None = None,
    pick_ports: Callable[[int], list[int]] = free_ports,
) -> list[T]:
    if workers < 1:
        raise OptionError(f"A gang needs at least one worker; found workers={workers}.")
    call = dump_call(function, args)
    server = ForkServer.shared()
    server.wait_until_ready()  # The imports, once a session, are not the gang's time.
    end = time.monotonic() + deadline
    for attempt in range(PORT_ATTEMPTS):
        ports = pick_ports(workers) if workers > 1 else []
        jobs = [
            _job(
                WorkerSpec(
                    rank=rank,
                    world_size=workers,
                    addresses=tuple(f"127.0.0.1:{port}" for port in ports),
                    strategy=strategy or "auto",
                    devices=devices,
                    threads=1,
                    seed=seed,
                    attempt=attempt,
                ),
                enter=strategy is not None,
                call=call,
                env=env or {},
            )
            for rank in range(workers)
        ]
        try:
            values = _attempt(server, jobs, deadline, end)
        except GangFailedError as error:
            if attempt + 1 < PORT_ATTEMPTS and _port_was_taken(error):
                continue
            raise
        return [pickle.loads(value) for value in values]
    raise AssertionError("unreachable: the last attempt returns or raises")


def _job(spec: WorkerSpec, *, enter: bool, call: bytes, env: Mapping[str, str]) -> Job:
    inherited = {k: v for k, v in os.environ.items() if k not in ("TF_CONFIG", WORKER_VARIABLE)}
    return Job(
        spec=spec,
        enter=enter,
        environment={**inherited, **spec.to_environment(), **env},
        path=list(sys.path),
        directory=os.getcwd(),
        call=call,
    )


def _attempt(server: ForkServer, jobs: list[Job], deadline: float, end: float) -> list[bytes]:
    """One start of the gang; returns the pickled results and leaves no process behind."""
    with contextlib.ExitStack() as stack:
        gang: list[WorkerProcess] = []
        stack.callback(_end, gang)
        for job in jobs:
            gang.append(WorkerProcess(job.spec.rank, server))
        for worker, job in zip(gang, jobs, strict=True):
            worker.start(job)
        _listen(gang, end)
        failures = [worker.failure for worker in gang]
        if any(failures):
            raise GangFailedError(failures, [worker.log_tail() for worker in gang])
        late = [worker for worker in gang if not worker.settled]
        if late:
            for worker in late:
                worker.ask_for_stacks()
            stacks = {worker.rank: worker.stacks(seconds=2.0) for worker in late}
            raise GangTimeoutError(deadline, stacks, [worker.log_tail() for worker in gang])
        return [worker.report.value for worker in gang if isinstance(worker.report, Returned)]


def _end(gang: list[WorkerProcess]) -> None:
    for worker in gang:
        worker.kill()
    for worker in gang:
        worker.close()


def _listen(gang: list[WorkerProcess], end: float) -> None:
    """Take in the workers' news until all are settled, `end`, or soon after a failure."""
    failed = False
    while not all(worker.settled for worker in gang):
        # One that returned is still watched: its death is the cause of what its peers say.
        handles = [handle for worker in gang for handle in worker.handles]
        if not wait(handles, timeout=max(0.0, end - time.monotonic())):
            return
        for worker in gang:
            worker.listen()
        if not failed and any(worker.failure for worker in gang):
            failed = True
            end = min(end, time.monotonic() + GRACE_SECONDS)


def _port_was_taken(error: GangFailedError) -> bool:
    told = [f"{f.message}\n{error.logs[f.rank]}" for f in error.failures if f is not None]
    return any(sign in text for text in told for sign in _PORT_TAKEN)
