"""All that `phalanx doctor` looks at. A new check is a file in `checks/` and a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from phalanx.diagnostics.doctor.checks import (
    all_reduce,
    cluster,
    cuda,
    devices,
    horovod,
    network,
    resource_limits,
    storage,
    versions,
)
from phalanx.diagnostics.doctor.machine import MachineInfo
from phalanx.diagnostics.doctor.result import Result

Check = Callable[[MachineInfo], Iterable[Result]]

CHECKS: tuple[Check, ...] = (
    versions.check,
    devices.check,
    cuda.check,
    horovod.check,
    cluster.check,
    network.check,
    resource_limits.check,
    storage.check,
    all_reduce.check,
)


def run_checks(here: MachineInfo) -> Iterator[Result]:
    """The results of all checks, as they come."""
    for check in CHECKS:
        yield from check(here)


def is_passing(results: Iterable[Result]) -> bool:
    """Whether nothing stands in the way of training."""
    return all(result.verdict != "error" for result in results)
