"""From options to a gang of worker processes on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

from phalanx.cluster.spec import StrategyName, WorkerSpec
from phalanx.launch.hardware import Share
from phalanx.launch.layout import AttemptPaths
from phalanx.launch.ports import PortPicker
from phalanx.launch.process import WorkerHandle, WorkerProcess

StartProcess = Callable[..., WorkerHandle]
WorkerCommand = Callable[..., tuple[str, ...]]
"""Gives a worker's command: `worker_command`, or a test's stand-in."""


@dataclass(frozen=True, kw_only=True)
class GangPlan:
    """Everything about a gang but its ports.

    Attributes:
        command: what each worker process runs.
        environment: the launcher's environment, with the user's additions.
        shares: what each worker gets of the machine, by rank.
        strategy: how the workers train together.
        seed: the seed of every worker.
        run_dir: the run's directory.
        interactive: whether a person watches the terminal.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    shares: Sequence[Share]
    strategy: StrategyName
    seed: int
    run_dir: Path
    interactive: bool = False

    def paths(self, attempt: int) -> AttemptPaths:
        """The files of one start of this gang."""
        return AttemptPaths(run=self.run_dir, attempt=attempt)


def worker_command(target: str, arguments: Sequence[str], *, as_module: bool) -> tuple[str, ...]:
    """The command of a worker that runs the user's script.

    `-P` keeps the current directory out of the imports that come before the script's own.
    """
    start = (sys.executable, "-P", "-m", "phalanx.worker")
    return (*start, "-m" if as_module else "-f", target, *arguments)


def worker_specs(plan: GangPlan, *, attempt: int, pick_ports: PortPicker) -> list[WorkerSpec]:
    """Every worker's place, with ports that are free now."""
    world_size = len(plan.shares)
    networked = world_size > 1 or plan.strategy == "multiworker"
    ports = pick_ports(world_size) if networked else []
    return [
        WorkerSpec(
            rank=rank,
            world_size=world_size,
            addresses=tuple(f"127.0.0.1:{port}" for port in ports),
            strategy=plan.strategy,
            devices=share.devices,
            threads=share.threads,
            seed=plan.seed,
            run_dir=str(plan.run_dir),
            attempt=attempt,
            interactive=plan.interactive,
        )
        for rank, share in enumerate(plan.shares)
    ]


def worker_environment(plan: GangPlan, spec: WorkerSpec) -> dict[str, str]:
    """The environment of one worker: the launcher's, and what the gang needs."""
    environment = dict(plan.environment)
    environment.pop("TF_CONFIG", None)  # One of the launcher's own would contradict the spec.
    environment["PYTHONUNBUFFERED"] = "1"
    environment.setdefault("PYTHONIOENCODING", "utf-8")  # What the launcher reads from the logs.
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    environment["KERAS_BACKEND"] = "tensorflow"  # A keras.json may name another.
    # Sets of strings must come in one order everywhere: vocabularies are built from them.
    environment.setdefault("PYTHONHASHSEED", str(plan.seed))
    gpus = plan.shares[spec.rank].gpus
    if gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    environment.update(spec.to_environment())
    return environment


def start_gang(
    plan: GangPlan, specs: Sequence[WorkerSpec], start: StartProcess = WorkerProcess
) -> dict[int, WorkerHandle]:
    """Start all workers, or none.

    Raises:
        LaunchError: one did not start; those that did were ended again.
    """
    paths = plan.paths(specs[0].attempt)
    paths.directory.mkdir(parents=True, exist_ok=True)
    handles: dict[int, WorkerHandle] = {}
    try:
        for spec in specs:
            handles[spec.rank] = start(
                plan.command, env=worker_environment(plan, spec), log=paths.log(spec.rank)
            )
    except BaseException:
        for handle in handles.values():
            with suppress(OSError):
                handle.signal(SIGKILL)
        raise
    return handles
