"""A worker's life: prepare, run the script, end together with the others."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from phalanx.cluster.spec import WorkerSpec
from phalanx.errors import ClusterError
from phalanx.launch.layout import AttemptPaths
from phalanx.worker import ending
from phalanx.worker.execute import Target, execute
from phalanx.worker.lifeline import (
    die_with_launcher,
    dump_stacks_on_request,
    end_at_once_on_sigterm,
)


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
    die_with_launcher(os.getppid())
    dump_stacks_on_request(paths.stacks(spec.rank))

    ending.install_last_exit()
    try:
        strategy = prepare(spec)
        script = _run(target)
        if spec.world_size > 1:
            from phalanx.worker.peers import wait_for_peers

            wait_for_peers(strategy)
        del script
    except BaseException as error:
        failure = ending.record_failure(error, rank=spec.rank, now=time.time())
        failure.write(paths.error(spec.rank))
        print(failure.traceback or failure.message, file=sys.stderr, flush=True)
        ending.leave_without_peers(failure.exit_code)


def prepare(spec: WorkerSpec) -> Any:
    """Everything that must be in place before the script's first line; the strategy."""
    import keras
    import tensorflow as tf

    import phalanx
    from phalanx.worker import adopt, devices
    from phalanx.worker.strategy import made_kind, make_for_worker

    _log_to_stderr()
    if spec.threads is not None:
        devices.limit_threads(spec.threads)
    if spec.devices is not None:
        devices.use_devices(spec.devices)
    strategy = make_for_worker(spec)
    end_at_once_on_sigterm()
    adopt.ensure_cluster_resolver(strategy)
    if made_kind() == "single":
        adopt.complete_own_strategies()
    else:
        adopt.adopt(strategy)
        adopt.keep_through_clear_session(strategy)
        tf.distribute.experimental_set_strategy(strategy)
    if spec.seed is not None:
        keras.utils.set_random_seed(spec.seed)
    phalanx.enable()
    return strategy


def _run(target: Target) -> dict[str, object]:
    """Run the script; `sys.exit(0)` is a good end like any other."""
    try:
        return execute(target)
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise
        return {}


def _log_to_stderr() -> None:
    """Show what `phalanx` says; the root logger stays the script's."""
    log = logging.getLogger("phalanx")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("phalanx: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
