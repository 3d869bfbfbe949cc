"""A worker's life: prepare, run the script, end together with the others."""

from __future__ import annotations

import fcntl
import logging
import os
import pdb
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

from phalanx.cluster.exit_codes import RESUME_EXIT_CODE
from phalanx.cluster.spec import WorkerSpec
from phalanx.distributed.desync.check import before_collective
from phalanx.distributed.desync.check import begin as start_desync_check
from phalanx.errors import ClusterError
from phalanx.launcher.run_dir import versions
from phalanx.launcher.run_layout import AttemptPaths
from phalanx.monitoring.event_log import EventLog, event_log_of
from phalanx.monitoring.events import WorkerEnd, WorkerStart
from phalanx.monitoring.flight_recorder import flight
from phalanx.monitoring.phase_tracker import HeartbeatWriter, phase_tracker, record_moment
from phalanx.worker import directory_creation, process_exit
from phalanx.worker.logs import set_up_logging
from phalanx.worker.process_exit import dump_stacks_on_request, exit_on_sigterm
from phalanx.worker.run_script import Target, execute
from phalanx.worker.standard_output import survive_full_disk


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Be the worker that `environment` describes and run the script in `arguments`.

    Raises:
        ClusterError: this process was not started by `phalanx run`.
    """
    spec = WorkerSpec.from_environment(environment)
    if spec is None or spec.run_dir is None:
        raise ClusterError("phalanx.worker is what `phalanx run` starts; use that command.")
    target = Target.from_arguments(arguments)
    paths = AttemptPaths(run=Path(spec.run_dir), attempt=spec.attempt)
    dump_stacks_on_request(paths.stacks(spec.rank))

    survive_full_disk()
    process_exit.install_exit_guard()
    process = os.getpid()
    event_log = event_log_of(spec.run_dir, spec.rank)
    heartbeat = HeartbeatWriter(event_log, phase_tracker).start()
    phase_tracker.follow(flight)
    own = paths.flight(spec.rank)
    flight.open(own, rank=spec.rank, attempt=spec.attempt, workers=spec.world_size)
    phase_tracker.listen(FirstStep(paths.first_step(spec.rank)))
    try:
        if spec.serves:
            _serve(spec, event_log)
        strategy = prepare(spec)
        event_log.append(introduction(spec, strategy))
        phase_tracker.enter("idle")
        script, code = _run(target)
        if os.getpid() != process:
            raise SystemExit(code)  # in a child that the script has forked
        if spec.shares_script:
            _exit_barrier(strategy, saved=code != 0)
        flight.close()
        heartbeat.close()
        record_moment(event_log)
        event_log.append(WorkerEnd(ok=True, step=phase_tracker.beat().step))
        del script
    except BaseException as error:
        if os.getpid() != process:
            _end_forked_child(error)
        failure = process_exit.record_failure(
            error,
            rank=spec.rank,
            now=time.time(),
            monotonic=time.monotonic(),
            step=phase_tracker.beat().step,
            workers=spec.world_size if spec.shares_script else 1,
        )
        with suppress(OSError):  # A full disk does not change how it ends.
            failure.write(paths.error(spec.rank))
        flight.close()
        heartbeat.close()
        event_log.append(WorkerEnd(ok=False, error=failure.summary))
        print(failure.traceback or failure.message, file=sys.stderr, flush=True)
        process_exit.exit_without_barrier(failure.exit_code)
    if code:
        process_exit.exit_without_barrier(code)


def _serve(spec: WorkerSpec, event_log: EventLog) -> NoReturn:
    """Be at a chief's service until the launcher ends this process."""
    from phalanx.worker import devices
    from phalanx.worker.ps_server import serve

    set_up_logging(spec)
    if spec.devices is not None:
        devices.use_devices(spec.devices)
    event_log.append(_worker_start(spec, replicas=1, devices=devices.visible_devices()))
    phase_tracker.enter("idle")
    serve(spec)


def prepare(spec: WorkerSpec) -> Any:
    """Everything that must be in place before the script's first line; the strategy."""
    import keras
    import tensorflow as tf

    import phalanx
    from phalanx.worker import devices, late_settings, strategy_override
    from phalanx.worker.seed import LauncherSeed
    from phalanx.worker.strategy import made_info, make_for_worker

    set_up_logging(spec)
    set_up_breakpoints(spec, os.environ)
    if spec.threads is not None:
        devices.limit_threads(spec.threads)
    if spec.devices is not None:
        devices.use_devices(spec.devices)
    strategy = make_for_worker(spec)
    exit_on_sigterm()
    start_desync_check(spec)
    strategy_override.ensure_cluster_resolver(strategy)
    if made_info().is_default:
        strategy_override.complete_script_strategies()
    else:
        strategy_override.adopt(strategy)
        late_settings.answer_late_settings()
        strategy_override.survive_clear_session(strategy)
        tf.distribute.experimental_set_strategy(strategy)
    if spec.seed is not None:
        keras.utils.set_random_seed(LauncherSeed(spec.seed))
    phalanx.enable()
    directory_creation.install(spec)
    return strategy


def introduction(spec: WorkerSpec, strategy: Any) -> WorkerStart:
    """What a worker says of itself before the script's first line."""
    return _worker_start(spec, replicas=strategy.num_replicas_in_sync, devices=_devices(strategy))


def _worker_start(spec: WorkerSpec, *, replicas: int, devices: Sequence[str]) -> WorkerStart:
    return WorkerStart(
        attempt=spec.attempt,
        rank=spec.rank,
        role=spec.role,
        workers=spec.world_size,
        pid=os.getpid(),
        host=socket.gethostname(),
        replicas=replicas,
        devices=tuple(devices),
        versions=versions(),
    )


def _devices(strategy: Any) -> list[str]:
    from phalanx.worker.devices import local_devices
    from phalanx.worker.strategy import made_info

    info = made_info()
    if not info.multi_worker or info.uses_parameter_servers:
        return local_devices()
    # In a cluster TensorFlow lists the others' devices too, but not here.
    return [name.rpartition("device:")[2] for name in strategy.extended.worker_devices]


def _end_forked_child(error: BaseException) -> NoReturn:
    """End a process that the script has forked, as Python would: it is not the worker."""
    if not isinstance(error, SystemExit):
        print(process_exit.format_traceback(error), file=sys.stderr, flush=True)
    elif isinstance(error.code, str):
        print(error.code, file=sys.stderr, flush=True)
    process_exit.exit_without_barrier(process_exit.exit_code_of(error))


def _run(target: Target) -> tuple[dict[str, object], int]:
    """Run the script: its variables, and 0 or `RESUME_EXIT_CODE`, which are both good ends."""
    try:
        return execute(target), 0
    except SystemExit as leaving:
        if leaving.code not in (None, 0, RESUME_EXIT_CODE):
            raise
        return {}, leaving.code or 0


def _exit_barrier(strategy: Any, *, saved: bool) -> None:
    """Leave together; once all is saved, a peer that went without a report is no failure."""
    with suppress(*([Exception] if saved else [])), flight.collective("exit barrier", 0):
        before_collective("the end of the script")
        strategy.collectives.barrier()


class FirstStep:
    """Listens to phases; the mark shows whether a worker failed to start or failed later.

    Args:
        mark: the file to make; it holds the time and the step.
        clock: seconds since the epoch.
    """

    def __init__(self, mark: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._mark = mark
        self._clock = clock
        self._began: int | None = None
        self._done = False

    def __call__(self, step: int) -> None:
        """Take in the last step trained; what `fit` begins with was trained before."""
        if self._began is None:
            self._began = step
        elif step > self._began and not self._done:
            self._done = True
            with suppress(OSError):  # A full disk ends no training.
                self._mark.write_text(f"{self._clock()} {step}\n")


# Workers have no terminal of their own, so pdb would end at once. A script's `breakpoint()` is
# in all workers; those without the terminal continue, and wait in the next collective.

_log = logging.getLogger(__name__)


def set_up_breakpoints(spec: WorkerSpec, environment: Mapping[str, str]) -> None:
    """Make `breakpoint()` right in this worker; PYTHONBREAKPOINT keeps its meaning."""
    if "PYTHONBREAKPOINT" in environment:
        return

    def hook(*args: Any, **kwargs: Any) -> None:
        frame = sys._getframe(1)
        if spec.has_terminal:
            _stop(spec.rank, frame)
        else:
            _pass_over(spec, frame)

    sys.breakpointhook = hook


def _stop(rank: int, frame: FrameType) -> None:
    output = _terminal()
    print(f"worker {rank} is at {_where(frame)}", file=output, flush=True)
    pdb.Pdb(stdin=sys.stdin, stdout=output, nosigint=True).set_trace(frame)


def _terminal() -> TextIO:
    """Where a person reads: the terminal itself, whose prompts end with no line, or the log."""
    writable = fcntl.fcntl(0, fcntl.F_GETFL) & (os.O_WRONLY | os.O_RDWR)
    return open(0, "w", closefd=False) if os.isatty(0) and writable else sys.stdout


def _pass_over(spec: WorkerSpec, frame: FrameType) -> None:
    _log.warning(
        "breakpoint() at %s is passed over: %s",
        _where(frame),
        f"worker {spec.switches.debug_rank} has the terminal"
        if spec.switches.debug
        else "a worker has no terminal; phalanx run --debug gives it one",
    )


def _where(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
