"""The name of this host, by which Horovod makes a part of its connections."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from phalanx.errors import ClusterError


def assert_reachable(
    name: str,
    addresses: Sequence[str],
    *,
    known_as: str,
    resolve: Callable[[str], str] = socket.gethostbyname,
) -> None:
    """Refuse a host whose own name leads nowhere that other hosts could reach.

    Horovod connects the processes of a process set by the address of the host's name, whatever
    `HOROVOD_GLOO_IFACE` says, and its library aborts where they cannot reach each other:
    https://github.com/horovod/horovod/blob/v0.28.1/horovod/common/gloo/gloo_context.cc
    (`InitializeForProcessSet`).

    Args:
        name: of this host.
        addresses: of this host's network interfaces.
        known_as: what the other hosts call this one. On loopback they are this machine too, as the
            nodes of a Slurm or a Ray on one machine, and any name will do.
        resolve: the address of a name.

    Raises:
        ClusterError: the name has no address, or not one of this host's that others see.
    """
    if known_as.startswith("127."):
        return
    try:
        found = resolve(name)
    except OSError as error:
        found = f"none ({error})"
    if found.startswith("127.") or found not in addresses:
        raise ClusterError(
            f"Horovod connects hosts by their names; found for {name}, this host, the address "
            f"{found}, by which no other host reaches it. Put its own address and {name} into "
            "/etc/hosts, in place of 127.0.1.1 or the like, or use --strategy multiworker."
        )
