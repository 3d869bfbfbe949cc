"""Which names and addresses are this machine's own."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import psutil


def _no_addresses(host: str) -> Collection[str]:
    return ()


@dataclass(frozen=True, kw_only=True)
class LocalHost:
    """This machine, as others may call it.

    Attributes:
        names: its host names, short and long.
        addresses: its addresses on all interfaces.
        resolve: gives the addresses of a name; none where it is unknown.
    """

    names: frozenset[str]
    addresses: frozenset[str]
    resolve: Callable[[str], Collection[str]] = field(default=_no_addresses, repr=False)

    def is_host(self, host: str) -> bool:
        """Whether a name or an address means this machine."""
        host = host.strip().strip("[]")
        if is_address(host):
            return host in self.addresses
        known = {name.lower() for name in self.names}
        short = {name.partition(".")[0] for name in known}
        requested = host.lower()
        if requested in known or requested in short or requested.partition(".")[0] in known:
            return True
        return not self.addresses.isdisjoint(self.resolve(host))

    @classmethod
    def here(cls) -> LocalHost:
        """The machine that this process runs on."""
        interfaces = psutil.net_if_addrs().values()
        return cls(
            names=frozenset({socket.gethostname()}),
            addresses=frozenset(
                one.address.partition("%")[0]
                for interface in interfaces
                for one in interface
                if one.family in (socket.AF_INET, socket.AF_INET6)
            ),
            resolve=resolve,
        )


def is_address(host: str) -> bool:
    """Whether this is an IP address, and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def resolve(host: str) -> Collection[str]:
    """The addresses of a name by the machine's resolver; none where it knows none."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return {str(address[0]) for *_, address in found}
