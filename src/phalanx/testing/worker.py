"""Inside a forked worker: enter the cluster; job by job, call the function and report."""

from __future__ import annotations

import faulthandler
import os
import pickle
import random
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from phalanx.cluster.spec import WorkerSpec
from phalanx.testing.pickling import dump_value


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that a worker needs from the process that asked for it, for one call.

    Attributes:
        spec: its place in the worker group, the same in every job but for the seed.
        enter: whether it makes the spec's strategy before the first call.
        environment: the whole environment.
        path: `sys.path`.
        directory: the working directory.
        call: the function and its arguments, pickled.
    """

    spec: WorkerSpec
    enter: bool
    environment: dict[str, str]
    path: list[str]
    directory: str
    call: bytes


@dataclass(frozen=True, kw_only=True)
class Returned:
    """The function returned; `value` is pickled."""

    value: bytes


@dataclass(frozen=True, kw_only=True)
class Raised:
    """The function, or what leads to it, raised."""

    type_name: str
    message: str
    traceback: str
    time: float


def main(arguments: Sequence[str], _environment: Mapping[str, str]) -> NoReturn:
    """Do jobs to the end of the process.

    Args:
        arguments: the numbers of the descriptors of the jobs' channel, of the file for stacks, and
            of the pipe that reports that they are written.
    """
    channel, stacks, dumped = map(int, arguments)
    exitcode = 70  # What shows if not even the worker's own reporting worked.
    try:
        exitcode = work(Connection(channel), stacks_fd=stacks, dumped_fd=dumped)
    finally:
        # No destructors, no atexit: they belong to the server, and TensorFlow's may hang.
        os._exit(exitcode)


def work(channel: Connection[Any, Any], *, stacks_fd: int, dumped_fd: int) -> int:
    """Do the jobs that come over `channel` until it closes or one fails; returns the exit code."""
    _dump_stacks_on_signal(stacks_fd, dumped_fd)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    is_first = True
    while True:
        # The barrier: who leaves first resets its peers' connections, so no process leaves
        # before the parent has every worker's report (and closes the channel).
        try:
            job: Job = channel.recv()
        except EOFError:
            return 0
        report, exitcode = _report(job, is_first=is_first)
        sys.stdout.flush()
        sys.stderr.flush()
        channel.send(report)
        if isinstance(report, Raised):
            return exitcode
        is_first = False


def _report(job: Job, *, is_first: bool) -> tuple[Returned | Raised, int]:
    """Do one job; gives what to report of it, and the exit code if the worker ends with it."""
    try:
        if not is_first:
            reset(keeps_strategy=job.enter)
        _settle(job)
        function, args = pickle.loads(job.call)
        if is_first:
            _configure(job.spec)
            if job.enter:
                _enter(job.spec)
        if job.spec.seed is not None:
            _seed(job.spec.seed)
        return Returned(value=dump_value(function(*args))), 0
    except BaseException as error:
        happened = time.monotonic()
        report = Raised(
            type_name=type(error).__name__,
            message=str(error),
            traceback="".join(traceback.format_exception(error)),
            time=happened,
        )
        code = error.code if isinstance(error, SystemExit) else 1
        return report, code if isinstance(code, int) else 1


def _dump_stacks_on_signal(stacks_fd: int, dumped_fd: int) -> None:
    """On SIGUSR2 all threads' stacks go to one descriptor, then a byte to the other.

    Both happen in C, so they work inside a blocked collective: faulthandler writes, then
    chains to Python's own handler, which writes the signal's number to the wakeup descriptor.
    """
    os.set_blocking(dumped_fd, False)
    signal.set_wakeup_fd(dumped_fd, warn_on_full_buffer=False)
    signal.signal(signal.SIGUSR2, lambda *_: None)
    faulthandler.register(signal.SIGUSR2, file=stacks_fd, all_threads=True, chain=True)
    faulthandler.enable()


def _settle(job: Job) -> None:
    """Take over the parent's surroundings in place of the fork server's."""
    os.environ.clear()
    os.environ.update(job.environment)
    sys.path[:] = job.path
    sys.argv[:] = [f"worker-{job.spec.rank}"]
    os.chdir(job.directory)
    import numpy as np

    # Python reseeds itself after a fork; NumPy would give every worker the same numbers.
    random.seed()
    np.random.seed()


def _configure(spec: WorkerSpec) -> None:
    """Threads and devices; this fails if the fork server started the runtime."""
    from phalanx.worker.devices import limit_threads, use_devices

    if spec.threads is not None:
        limit_threads(spec.threads)
    if spec.devices is not None:
        use_devices(spec.devices)


def _enter(spec: WorkerSpec) -> None:
    """Make the spec's strategy, as `phalanx run` does, and let it hold for the process."""
    import tensorflow as tf

    from phalanx.worker.strategy import make_for_worker

    tf.distribute.experimental_set_strategy(make_for_worker(spec))


def _seed(seed: int) -> None:
    import keras

    keras.utils.set_random_seed(seed)


def reset(*, keeps_strategy: bool) -> None:
    """Reset the state of Keras, TensorFlow and Phalanx before the next call.

    Args:
        keeps_strategy: whether this process's own strategy is in force afterwards, else none.
    """
    import keras
    import tensorflow as tf

    import phalanx
    from phalanx.keras_compat.rng import forget_draws
    from phalanx.training.checkpoint_manager import forget_fits
    from phalanx.training.nonfinite_capture import forget_capture_dir

    phalanx.disable()
    forget_fits()
    forget_capture_dir()
    tf.config.run_functions_eagerly(False)
    # A strategy is in force on the default graph, which `clear_session` replaces.
    tf.distribute.experimental_set_strategy(None)
    keras.backend.clear_session()
    if keeps_strategy:
        tf.distribute.experimental_set_strategy(phalanx.strategy())
    tf.random.set_seed(None)
    forget_draws()
