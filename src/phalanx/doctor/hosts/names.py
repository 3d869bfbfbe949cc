"""What a host makes of the names of all hosts: to an address, and back."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from phalanx.cluster.me import is_address


@dataclass(frozen=True, kw_only=True)
class Known:
    """A name, as one host knows it.

    Attributes:
        name: of some host.
        own: whether it is that host's own.
        address: its first one; None where it has none.
        back: the name of that address; None where it has none.
        error: why there is no address.
    """

    name: str
    own: bool = False
    address: str | None = None
    back: str | None = None
    error: str | None = None

    def to_fields(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Known:
        """From JSON."""
        return cls(**fields)


def know(hosts: Sequence[str], index: int) -> list[Known]:
    """What this host makes of those that are names, and no addresses.

    Args:
        hosts: names or addresses.
        index: which is this one.
    """
    return [
        _know(host, own=at == index)
        for at, host in enumerate(hosts)
        if host and not is_address(host)
    ]


def _know(name: str, *, own: bool) -> Known:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return Known(name=name, own=own, error=str(error))
    address = str(found[0][4][0])
    try:
        back = socket.gethostbyaddr(address)[0]
    except OSError:
        back = None
    return Known(name=name, own=own, address=address, back=back)
