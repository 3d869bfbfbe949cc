"""What this machine has, found without TensorFlow, and how workers share it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from phalanx.cluster.spec import DeviceSpec
from phalanx.cluster.strategies import StrategyName, strategy_info
from phalanx.errors import ConfigurationError
from phalanx.launcher.options import check_workers_fit

_GPU_NODE = re.compile(r"nvidia\d+")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The cores and GPUs of this machine.

    Attributes:
        cores: CPU cores that this process may use.
        gpus: what CUDA_VISIBLE_DEVICES calls each GPU: "0", "1", ... or an identifier.
    """

    cores: int = 1
    gpus: tuple[str, ...] = ()

    @classmethod
    def here(cls, environment: Mapping[str, str]) -> Machine:
        """The machine this process runs on; CUDA_VISIBLE_DEVICES is respected."""
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        gpus = visible_gpus(visible) if visible is not None else count_gpus(Path("/dev"))
        return cls(cores=len(os.sched_getaffinity(0)), gpus=gpus)


@dataclass(frozen=True, kw_only=True)
class ResourceAllocation:
    """What one worker gets of its machine.

    Attributes:
        devices: the devices to use; None takes what is visible.
        threads: CPU threads; None leaves it to TensorFlow.
        gpus: the GPUs this worker may see; None changes nothing.
    """

    devices: DeviceSpec | None
    threads: int | None
    gpus: tuple[str, ...] | None


def visible_gpus(variable: str) -> tuple[str, ...]:
    """The GPUs that a CUDA_VISIBLE_DEVICES value names; CUDA stops at the first bad one."""
    names: list[str] = []
    for name in variable.split(","):
        if not name.strip() or name.strip().startswith("-"):
            break
        names.append(name.strip())
    return tuple(names)


def count_gpus(dev: Path) -> tuple[str, ...]:
    """The NVIDIA GPUs that have a device file in `dev`, or that nvidia-smi lists."""
    count = sum(1 for node in dev.glob("nvidia*") if _GPU_NODE.fullmatch(node.name))
    if count == 0 and (smi := shutil.which("nvidia-smi")):
        count = _ask_nvidia_smi(smi)
    return tuple(str(index) for index in range(count))


def _ask_nvidia_smi(smi: str) -> int:
    try:
        listing = subprocess.run(
            [smi, "-L"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())


def share_gpus(
    machines: Sequence[Machine], hosts: Sequence[str], environment: Mapping[str, str]
) -> list[Machine]:
    """The machines of several launchers, those on one host with equal shares of its GPUs.

    Each of `mpirun -np 4` or of several tasks on a Slurm node sees all GPUs of its host. Launchers
    that see fewer GPUs than there are launchers, or other ones, have been given their own.

    Args:
        machines: what each launcher sees.
        hosts: on which host each is.
        environment: of a launcher.
    """
    gives_each_task = any(
        "gpu" in environment.get(name, "") or environment.get(name, "").isdecimal()
        for name in ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK")
    )
    if gives_each_task:
        return list(machines)
    seen = list(zip(hosts, (machine.gpus for machine in machines), strict=True))
    shared: list[Machine] = []
    for index, (machine, place) in enumerate(zip(machines, seen, strict=True)):
        count, before = seen.count(place), seen[:index].count(place)
        each = len(machine.gpus) // count
        gpus = machine.gpus[before * each : (before + 1) * each]
        shared.append(replace(machine, gpus=gpus) if each else machine)
    return shared


def default_workers(machine: Machine, strategy: StrategyName, devices: DeviceSpec | None) -> int:
    """One worker for each GPU, else one; one as well where a worker is to have several devices."""
    kind = strategy_info(strategy)
    if kind is not None and not kind.multi_worker:
        return 1
    if devices is not None and (devices.count > 1 or devices.kind in ("cpu", "logical-gpu")):
        return 1
    return max(1, len(machine.gpus))


def idle_gpus(machine: Machine, resources: Sequence[ResourceAllocation]) -> str:
    """A sentence about the GPUs of a machine that none of its workers sees; empty if none is left.

    Args:
        machine: the machine.
        resources: what its workers get.
    """
    seen = {gpu for allocation in resources for gpu in allocation.gpus or ()}
    total = len(machine.gpus)
    if not seen or len(seen) == total or any(allocation.gpus is None for allocation in resources):
        return ""
    return (
        f"{len(seen)} of {total} GPUs here {'is' if len(seen) == 1 else 'are'} used, one by each "
        f"worker; --workers {total} uses all"
    )


def check_placement(workers: int, hosts: int) -> None:
    """Refuse a number of workers that cannot be spread evenly.

    Raises:
        ConfigurationError: says which numbers can.
    """
    if workers % hosts:
        raise ConfigurationError(
            f"--workers counts those of the whole run, which is spread over {hosts} hosts "
            f"evenly; found {workers}. Give a multiple of {hosts}."
        )


def allocate_over_nodes(
    machines: Sequence[Machine],
    *,
    workers: int | None,
    strategy: StrategyName,
    devices: DeviceSpec | None,
    threads: int | None,
) -> tuple[list[ResourceAllocation], list[int]]:
    """What each worker gets, and of which machine, by rank.

    Args:
        machines: what there is, by host.
        workers: of the whole run; None takes each machine's default.
        strategy: how they train together.
        devices: of each worker.
        threads: CPU threads of each worker; None shares a machine's cores out.

    Raises:
        ConfigurationError: they cannot be spread evenly, or a machine has not what its share needs.
    """
    if workers is not None:
        check_placement(workers, len(machines))
    resources: list[ResourceAllocation] = []
    node_ranks: list[int] = []
    for node, machine in enumerate(machines):
        default = default_workers(machine, strategy, devices)
        count = default if workers is None else workers // len(machines)
        resources += allocate_resources(
            machine, workers=count, strategy=strategy, devices=devices, threads=threads
        )
        node_ranks += [node] * count
    check_workers_fit(len(resources), strategy, devices)
    return resources, node_ranks


def allocate_resources(
    machine: Machine,
    *,
    workers: int,
    strategy: StrategyName,
    devices: DeviceSpec | None,
    threads: int | None,
) -> list[ResourceAllocation]:
    """What each of `workers` gets, by rank.

    Raises:
        ConfigurationError: there are not enough GPUs, or the strategy cannot use the devices.
    """
    if threads is None and workers > 1:
        threads = max(1, machine.cores // workers)
    kind = devices.kind if devices is not None else "auto"
    if kind == "cpu" or (kind == "auto" and not machine.gpus):
        on_cpus = DeviceSpec(count=devices.count, kind="cpu") if devices is not None else None
        check_workers_fit(workers, strategy, on_cpus)
        return [
            ResourceAllocation(devices=on_cpus, threads=threads, gpus=None) for _ in range(workers)
        ]
    if devices is not None and devices.kind == "logical-gpu":
        check_workers_fit(workers, strategy, devices)
        return [_split_gpu(machine, devices, threads)]
    named = strategy_info(strategy)
    if devices is None and named is not None and not named.multi_worker:
        return [ResourceAllocation(devices=None, threads=threads, gpus=None)]
    if devices is None and workers == 1:
        # One device a worker; what TensorFlow makes of it is its own affair.
        return [ResourceAllocation(devices=None, threads=threads, gpus=machine.gpus[:1])]
    check_workers_fit(workers, strategy, devices)
    each = devices.count if devices is not None else 1
    if each * workers > len(machine.gpus):
        raise ConfigurationError(
            f"{workers} worker{'s' * (workers > 1)} with {each} GPU{'s' * (each > 1)} each need "
            f"{each * workers} GPUs; this machine shows {len(machine.gpus)}. Use fewer --workers, "
            "or --devices-per-worker cpu:1."
        )
    on_gpus = DeviceSpec(count=each, kind="gpu")
    return [
        ResourceAllocation(
            devices=on_gpus,
            threads=threads,
            gpus=machine.gpus[rank * each : (rank + 1) * each],
        )
        for rank in range(workers)
    ]


def _split_gpu(machine: Machine, devices: DeviceSpec, threads: int | None) -> ResourceAllocation:
    """The first GPU, which the one worker is to split."""
    if not machine.gpus:
        raise ConfigurationError(
            f"--devices-per-worker logical-gpu:{devices.count} splits a GPU, and this machine "
            "shows none. Use cpu:N to try several devices without one."
        )
    return ResourceAllocation(devices=devices, threads=threads, gpus=machine.gpus[:1])
