"""Worker processes that form a cluster and run one function after another."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from phalanx.cluster.reduce_options import ReduceOptions
from phalanx.cluster.spec import WORKER_VARIABLE, DeviceSpec, WorkerSpec
from phalanx.cluster.strategies import StrategyName
from phalanx.errors import ConfigurationError, LaunchError
from phalanx.launcher.forkserver import SERVER_MODULE, ForkedWorker, ForkServer, read_from
from phalanx.launcher.ports import PortPicker, pick_free_ports
from phalanx.launcher.root_cause import TAKEN_PORT
from phalanx.testing.errors import WorkerFailure, WorkerGroupFailedError, WorkerGroupTimeoutError
from phalanx.testing.pickling import dump_call
from phalanx.testing.worker import Job, Raised, Returned

T = TypeVar("T")

GRACE_SECONDS = 0.5
"""How long, after the first failure, the others may still report theirs."""

PORT_ATTEMPTS = 4
"""How often workers are started before a taken port counts as their failure."""

_PORT_TAKEN = (TAKEN_PORT, "Address already in use")


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
        reduction: ReduceOptions | None = None,
        env: Mapping[str, str] | None = None,
        pick_ports: PortPicker = pick_free_ports,
    ) -> None:
        """Describe the workers; none is started yet.

        Args:
            workers: the number of processes.
            strategy: entered before the first call, for all calls; None leaves it to functions.
            seed: the seed of calls that give none of their own.
            devices: the devices of each worker.
            reduction: in which pieces and in which dtype gradients travel; None for the defaults.
            env: environment variables for the workers, besides this process's own.
            pick_ports: gives as many free ports of this machine as it is asked for.

        Raises:
            ConfigurationError: there would be no worker.
        """
        if workers < 1:
            raise ConfigurationError(
                f"A worker group needs at least one worker; found workers={workers}."
            )
        self._workers = workers
        self._strategy = strategy
        self._seed = seed
        self._devices = devices
        self._reduction = reduction or ReduceOptions()
        self._env = dict(env or {})
        self._pick_ports = pick_ports
        self._worker_group: list[PoolWorker] = []
        self._addresses: tuple[str, ...] = ()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers and all that they started; a call after that starts new ones."""
        worker_group, self._worker_group = self._worker_group, []
        for worker in worker_group:
            worker.kill()
        for worker in worker_group:
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
            WorkerGroupFailedError: a worker raised or died; names the earliest.
            WorkerGroupTimeoutError: the deadline passed; shows every worker's stacks.
        """
        call = dump_call(function, args)
        server = fork_server()
        server.wait_until_ready()  # The imports, once a session, are not the worker group's time.
        end = time.monotonic() + deadline
        seed = self._seed if seed is None else seed
        if any(worker.has_ended_idle for worker in self._worker_group):
            self.close()
        is_new = not self._worker_group
        for attempt in range(PORT_ATTEMPTS):
            try:
                if not self._worker_group:
                    self._start(server)
                values = self._call(call, seed=seed, attempt=attempt, deadline=deadline, end=end)
            except WorkerGroupFailedError as error:
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
            self._worker_group.append(PoolWorker(rank, server))

    def _call(
        self, call: bytes, *, seed: int | None, attempt: int, deadline: float, end: float
    ) -> list[bytes]:
        """Have the workers do one call; returns the pickled results."""
        worker_group = self._worker_group
        for worker in worker_group:
            worker.start(self._job(worker.rank, call, seed=seed, attempt=attempt))
        _listen(worker_group, end)
        failures = [worker.failure for worker in worker_group]
        if any(failures):
            raise WorkerGroupFailedError(failures, [worker.log_tail() for worker in worker_group])
        late = [worker for worker in worker_group if not worker.settled]
        if late:
            for worker in late:
                worker.ask_for_stacks()
            stacks = {worker.rank: worker.stacks(seconds=2.0) for worker in late}
            raise WorkerGroupTimeoutError(
                deadline, stacks, [worker.log_tail() for worker in worker_group]
            )
        return [
            worker.report.value for worker in worker_group if isinstance(worker.report, Returned)
        ]

    def _job(self, rank: int, call: bytes, *, seed: int | None, attempt: int) -> Job:
        spec = WorkerSpec(
            rank=rank,
            world_size=self._workers,
            addresses=self._addresses,
            strategy=self._strategy or "auto",
            devices=self._devices,
            reduction=self._reduction,
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


def _listen(worker_group: list[PoolWorker], end: float) -> None:
    """Take in the workers' news until all are settled, `end`, or soon after a failure."""
    failed = False
    while not all(worker.settled for worker in worker_group):
        # One that returned is still watched: its death is the cause of what its peers say.
        handles = [handle for worker in worker_group for handle in worker.handles]
        if not wait(handles, timeout=max(0.0, end - time.monotonic())):
            return
        for worker in worker_group:
            worker.listen()
        if not failed and any(worker.failure for worker in worker_group):
            failed = True
            end = min(end, time.monotonic() + GRACE_SECONDS)


def _port_was_taken(error: WorkerGroupFailedError) -> bool:
    texts = [f"{f.message}\n{error.logs[f.rank]}" for f in error.failures if f is not None]
    return any(sign in text for text in texts for sign in _PORT_TAKEN)


_WORKER_MODULE = "phalanx.testing.worker"
_PYTHON = (sys.executable, "-P", "-m")
_PRELOAD = ("phalanx.callbacks", "phalanx.data", "phalanx.training", "phalanx.testing")
_TAIL_BYTES = 8192
_TAIL_LINES = 30


class PoolWorker:
    """One worker: what it reported of its last job, how it ended, what it printed.

    Its output goes to files without a name, so there is nothing on disk to clean up.
    """

    def __init__(self, rank: int, server: ForkServer) -> None:
        self.rank = rank
        self.report: Returned | Raised | None = None
        self.exitcode: int | None = None
        self._server = server
        self._is_asked = False
        self._printed_before = 0
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115
        self._channel, channel = Pipe()
        self._dumped, dumped = Pipe(duplex=False)
        with channel, dumped:
            self._process = ForkedWorker(
                server,
                (*_PYTHON, _WORKER_MODULE),
                env=os.environ,
                output=self._log.fileno(),
                main=_WORKER_MODULE,
                fds=[each.fileno() for each in (channel, self._stacks, dumped)],
            )

    def start(self, job: Job) -> None:
        """Hand over a job; what was reported and printed before is past."""
        self.report, self._is_asked = None, True
        self._printed_before = os.fstat(self._log.fileno()).st_size
        # A worker that is already dead speaks through its exit status.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channel.send(job)

    @property
    def handles(self) -> list[Connection[Any, Any] | int]:
        """What becomes readable when there is news from the worker."""
        process = [self._process.sentinel] if self.exitcode is None else []
        return [*process, self._channel] if self._is_asked else [*process]

    def listen(self) -> None:
        """Take in whatever news there is."""
        # A dead worker's report is already in the channel: all of it is read after this.
        self.exitcode = self._process.poll()
        if self._is_asked and self._channel.poll():
            with contextlib.suppress(EOFError, ConnectionResetError):
                self.report = self._channel.recv()
            self._is_asked = False
        if self._process.lost_server:
            raise LaunchError(
                "The fork server ended while its workers were running.\n" + self._server.log
            )

    @property
    def has_ended_idle(self) -> bool:
        """Whether it has ended while it had nothing to do, when it says nothing either."""
        return self._process.poll() is not None or self._channel.poll()

    @property
    def settled(self) -> bool:
        """Whether nothing more is to be expected of the job."""
        return isinstance(self.report, Returned) or self.exitcode is not None

    @property
    def failure(self) -> WorkerFailure | None:
        """How it ended badly, if it did. To end at all, unasked, is to end badly."""
        if isinstance(self.report, Raised):
            return WorkerFailure(
                rank=self.rank,
                type_name=self.report.type_name,
                message=self.report.message,
                traceback=self.report.traceback,
                exitcode=self.exitcode,
                time=self.report.time,
            )
        if self.exitcode is None:
            return None
        how = f"exit code {self.exitcode}"
        if self.exitcode < 0:
            how = signal.Signals(-self.exitcode).name
        when = "before" if self.report is None else "after"
        return WorkerFailure(
            rank=self.rank,
            type_name="Died",
            message=f"the process ended by {how} {when} its function returned",
            traceback="",
            exitcode=self.exitcode,
            time=self._process.ended,
        )

    def ask_for_stacks(self) -> None:
        """Let the worker write its threads' stacks."""
        self._process.ask(signal.SIGUSR2)

    def stacks(self, seconds: float) -> str:
        """The stacks asked for, waiting at most so long for the end of writing."""
        self._dumped.poll(seconds)
        return read_from(self._stacks.fileno(), 0)

    def log_tail(self) -> str:
        """The last lines of what it printed since the job began."""
        fd = self._log.fileno()
        begin = max(self._printed_before, os.fstat(fd).st_size - _TAIL_BYTES)
        text = read_from(fd, begin)
        return "\n".join(text.splitlines()[-_TAIL_LINES:])

    def kill(self) -> None:
        """End it and all it started, whatever they do."""
        self._process.signal(signal.SIGKILL)

    def close(self) -> None:
        """Wait for the end of a killed worker, and close its files."""
        if self._process.poll() is None:
            wait([self._process.sentinel], 10.0)
            self._process.poll()
        for each in (self._channel, self._dumped, self._log, self._stacks):
            each.close()


_server: ForkServer | None = None
_starting = threading.Lock()


def fork_server() -> ForkServer:
    """The fork server of this process, started on first use and ended with the process."""
    global _server
    with _starting:
        if _server is None or not _server.is_running:
            # Not tied to this thread, which may end before the process.
            _server = ForkServer.start(
                (*_PYTHON, SERVER_MODULE), env=_server_environment(), preload=_PRELOAD
            )
            atexit.register(_server.close)
        return _server


def fork_server_pid() -> int | None:
    """The process id of this process's fork server, if there is one."""
    return None if _server is None else _server.pid


def _server_environment() -> dict[str, str]:
    environment = {
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "1",
        **os.environ,
        # Native thread pools would not survive the fork.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    hidden = ("TF_CONFIG", WORKER_VARIABLE)
    return {name: value for name, value in environment.items() if name not in hidden}
