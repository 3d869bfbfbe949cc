"""Ports and names on this machine: can processes find each other, and who else can reach them?"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from phalanx.diagnostics.doctor.machine import MachineInfo
from phalanx.diagnostics.doctor.result import Result, failed, ok, warning
from phalanx.launcher.ports import pick_free_ports

_PORTS = 8


def check(here: MachineInfo) -> Iterator[Result]:
    """Free ports on loopback, this host's name both ways, and who can reach the workers."""
    del here
    yield _ports()
    yield _name(socket.gethostname())
    yield exposure(_addresses(), _ephemeral_ports())


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


def exposure(addresses: Sequence[str], ports: tuple[int, int]) -> Result:
    """Whether other hosts reach TensorFlow's servers, which listen on all addresses without
    authentication.

    https://github.com/tensorflow/tensorflow/blob/master/SECURITY.md

    Args:
        addresses: of this host's network interfaces.
        ports: the first and the last of those that the servers get.
    """
    found = [ipaddress.ip_address(address.partition("%")[0]) for address in addresses]
    reached = [one for one in found if not (one.is_loopback or one.is_link_local)]
    if not reached:
        return ok(
            "exposure", "this host has no address but loopback: no other host reaches workers"
        )
    where = ", ".join(map(str, reached))
    what = (
        f"the servers of a run with several workers ask for no credentials, and other hosts can "
        f"reach them at {where}, ports {ports[0]} to {ports[1]}, unless a firewall closes these"
    )
    if any(one.is_global for one in reached):
        return warning("exposure", f"{what}; an address is public", _firewall(ports))
    return ok("exposure", what, _firewall(ports))


def _firewall(ports: tuple[int, int]) -> str:
    """The commands that close the ports to other hosts."""
    rule = f"tcp dport {ports[0]}-{ports[1]} ct state new drop"
    return (
        "nft add table inet phalanx; "
        "nft add chain inet phalanx input '{ type filter hook input priority 0; }'; "
        f"nft add rule inet phalanx input iifname != lo {rule} "
        "(several hosts: also 'ip saddr != { ADDRESSES OF THE HOSTS }' before tcp)"
    )


def _addresses() -> list[str]:
    families = (socket.AF_INET, socket.AF_INET6)
    interfaces = psutil.net_if_addrs().values()
    return [one.address for found in interfaces for one in found if one.family in families]


def _ephemeral_ports() -> tuple[int, int]:
    """The ports that the kernel assigns where a process requests a free one."""
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return 1024, 65535
    return int(first), int(last)
