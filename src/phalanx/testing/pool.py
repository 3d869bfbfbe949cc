"""Worker processes that form a cluster and run one function after another."""

from __future__ import annotations

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
"""How often workers are started before a taken port counts as their failure."""

_PORT_TAKEN = ("Could not start gRPC server", "Address already in use")


class WorkerPool:
    """Workers that form a cluster and stay for many calls, which `run` hands them.

    The first call starts the workers. Every later call finds them under the same strategy, and
    without what the earlier calls left: Keras's state is cleared (`clear_session`), its dtype
    policy and TensorFlow's seed are reset, functions do not run eagerly, `phalanx.enable()` is
    taken back, unused objects are collected. Each call takes over the environment variables, the
    working directory and `sys.path` that this process then has.

    What a call does to modules and classes stays, as do threads and processes that it starts.

    A call that fails, or passes its deadline, ends the workers; the next call starts new ones. So
    does a call that finds that a worker has ended since the last.

    Used with `with`, or ended by `close`. A pool belongs to one thread at a time.
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        strategy: StrategyName | None = "multiworker",
        seed: int | None = None,
        devices: DeviceSpec | None = None,
        env: Mapping[str, str] | None = None,
        pick_ports: Callable[[int], list[int]] = free_ports,
    ) -> None:
        """Describe the workers; none is started yet.

        Args:
            workers: the number of processes.
            strategy: entered before the first call, for all calls; None leaves it to functions.
            seed: the seed of calls that give none of their own.
            devices: the devices of each worker.
            env: environment variables for the workers, besides this process's own.
            pick_ports: gives as many free ports of this machine as it is asked for.

        Raises:
            OptionError: there would be no worker.
        """
        if workers < 1:
            raise OptionError(f"A gang needs at least one worker; found workers={workers}.")
        self._workers = workers
        self._strategy = strategy
        self._seed = seed
        self._devices = devices
        self._env = dict(env or {})
        self._pick_ports = pick_ports
        self._gang: list[WorkerProcess] = []
        self._addresses: tuple[str, ...] = ()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers and all that they started; a call after that starts new ones."""
        gang, self._gang = self._gang, []
        for worker in gang:
            worker.kill()
        for worker in gang:
            worker.close()

    def run(
        self,
        function: Callable[..., T],
        *,
        args: Sequence[Any] = (),
        deadline: float = 60.0,
        seed: int | None = None,
    ) -> list[T]:
        """Call `function(*args)` in each worker.

        Args:
            function: what each worker calls; lambdas and closures work.
            args: the arguments, the same for every worker.
            deadline: seconds for everything, after which all stacks are dumped and all is killed.
            seed: given to `keras.utils.set_random_seed` on every worker; by default the pool's.

        Returns:
            What `function` returned on each worker, by rank.

        Raises:
            GangFailedError: a worker raised or died; names the earliest.
            GangTimeoutError: the deadline passed; shows every worker's stacks.
        """
        call = dump_call(function, args)
        server = ForkServer.shared()
        server.wait_until_ready()  # The imports, once a session, are not the gang's time.
        end = time.monotonic() + deadline
        seed = self._seed if seed is None else seed
        if any(worker.has_ended_idle for worker in self._gang):
            self.close()
        is_new = not self._gang
        for attempt in range(PORT_ATTEMPTS):
            try:
                if not self._gang:
                    self._start(server)
                values = self._call(call, seed=seed, attempt=attempt, deadline=deadline, end=end)
            except GangFailedError as error:
                self.close()
                if is_new and attempt + 1 < PORT_ATTEMPTS and _port_was_taken(error):
                    continue
                raise
            except BaseException:
                self.close()
                raise
            return [pickle.loads(value) for value in values]
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _start(self, server: ForkServer) -> None:
        ports = self._pick_ports(self._workers) if self._workers > 1 else []
        self._addresses = tuple(f"127.0.0.1:{port}" for port in ports)
        for rank in range(self._workers):
            self._gang.append(WorkerProcess(rank, server))

    def _call(
        self, call: bytes, *, seed: int | None, attempt: int, deadline: float, end: float
    ) -> list[bytes]:
        """Have the workers do one call; returns the pickled results."""
        gang = self._gang
        for worker in gang:
            worker.start(self._job(worker.rank, call, seed=seed, attempt=attempt))
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

    def _job(self, rank: int, call: bytes, *, seed: int | None, attempt: int) -> Job:
        spec = WorkerSpec(
            rank=rank,
            world_size=self._workers,
            addresses=self._addresses,
            strategy=self._strategy or "auto",
            devices=self._devices,
            threads=1,
            seed=seed,
            attempt=attempt,
        )
        hidden = ("TF_CONFIG", WORKER_VARIABLE)
        inherited = {k: v for k, v in os.environ.items() if k not in hidden}
        return Job(
            spec=spec,
            enter=self._strategy is not None,
            environment={**inherited, **spec.to_environment(), **self._env},
            path=list(sys.path),
            directory=os.getcwd(),
            call=call,
        )


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
