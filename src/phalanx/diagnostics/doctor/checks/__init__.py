"""The checks of `phalanx doctor`: functions of `MachineInfo` that give results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from phalanx.diagnostics.doctor.checks import (
    all_reduce,
    cluster,
    hardware,
    network,
    software,
    storage,
)
from phalanx.diagnostics.doctor.machine import MachineInfo
from phalanx.diagnostics.doctor.result import Result

Check = Callable[[MachineInfo], Iterable[Result]]

CHECKS: tuple[Check, ...] = (
    software.check_versions,
    hardware.check_devices,
    hardware.check_cuda,
    software.check_horovod,
    cluster.check,
    network.check,
    hardware.check_resource_limits,
    storage.check,
    all_reduce.check,
)


def run_checks(machine: MachineInfo) -> Iterator[Result]:
    """The results of all checks, one by one."""
    for check in CHECKS:
        yield from check(machine)
