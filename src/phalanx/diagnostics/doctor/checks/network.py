"""Ports and names on this machine: can processes find and reach each other?"""

from __future__ import annotations

import socket
from collections.abc import Iterator

from phalanx.diagnostics.doctor.machine import MachineInfo
from phalanx.diagnostics.doctor.result import Result, failed, ok, warning
from phalanx.launch.ports import pick_free_ports

_PORTS = 8


def check(here: MachineInfo) -> Iterator[Result]:
    """Free ports on loopback, and this host's name there and back."""
    del here
    yield _ports()
    yield _name(socket.gethostname())


def _ports() -> Result:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname()[:2], timeout=5).close()
        pick_free_ports(_PORTS)
    except OSError as problem:
        return failed(
            "ports",
            f"a process here does not reach another on 127.0.0.1: {problem}",
            "ip link set lo up; see that no firewall closes the loopback interface",
        )
    return ok("ports", f"{_PORTS} free ones, reached on 127.0.0.1")


def _name(host: str) -> Result:
    fix = f"echo '127.0.1.1 {host}' >> /etc/hosts (several hosts: this host's own address)"
    try:
        address = socket.gethostbyname(host)
    except OSError as problem:
        return warning("name", f"this host's name {host} has no address: {problem}", fix)
    try:
        back = socket.gethostbyaddr(address)[0]
    except OSError:
        return warning("name", f"{host} is {address}, which has no name", fix)
    return ok("name", f"{host} is {address}, which is {back}")
