"""An all-reduce of two processes on this machine, as in every step."""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.diagnostics.doctor.all_reduce import needs
from phalanx.diagnostics.doctor.machine import MachineInfo
from phalanx.diagnostics.doctor.result import Result, failed, ok

CHECK = "all-reduce"


def check(here: MachineInfo) -> Iterator[Result]:
    """Whether it works, and its cost for a step of a model."""
    found = here.all_reduce
    if found is None:
        return
    if found.speed is None:
        yield failed(
            CHECK,
            f"an all-reduce of two processes here fails: {found.error}",
            "unset http_proxy https_proxy grpc_proxy; see that no firewall closes the loopback "
            "interface",
        )
        return
    yield ok(CHECK, f"two processes here: {found.speed}; {needs(found.speed, here.parameters)}")
