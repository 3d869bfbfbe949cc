"""Connect the workers of `phalanx run` by Horovod's Gloo, without horovodrun.

Horovod's processes find each other through a small HTTP store, which horovodrun keeps on
the machine where it was started. Here worker 0 keeps it, at its own address.
https://github.com/horovod/horovod/blob/v0.28.1/horovod/runner/gloo_run.py sets the same
variables, which Horovod's library reads when it starts.
"""

from __future__ import annotations

import importlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

from phalanx.cluster.spec import WorkerSpec
from phalanx.errors import ClusterError
from phalanx.horovod.library import load

_SECONDS_FOR_WORKER_0 = 120.0
_SECONDS_FOR_ALL = "300"


def connect(spec: WorkerSpec | None) -> Any:
    """Start Horovod in this process; the module `horovod.tensorflow`.

    Args:
        spec: this worker; None where horovodrun or mpirun has started the process.

    Raises:
        ConfigurationError: Horovod is missing or does not load.
        ClusterError: worker 0 does not answer, or other hosts could not reach this one.
    """
    horovod = load()
    if horovod.is_initialized():
        return horovod
    if spec is not None and spec.world_size > 1:
        places, interfaces = host_assignments(spec.addresses), _interfaces()
        own = places[spec.rank]
        if own["local_size"] < spec.world_size:
            addresses = [address for found in interfaces.values() for address in found]
            assert_reachable(socket.gethostname(), addresses, known_as=own["hostname"])
        if spec.rank == 0:
            _keep_store(spec.addresses[0], places)
        else:
            wait_for(spec.addresses[0], clock=time.monotonic, sleep=time.sleep)
        os.environ.update(variables(spec, own, interfaces))
    horovod.init()
    return horovod


def host_assignments(addresses: Sequence[str]) -> list[dict[str, Any]]:
    """What Horovod calls a slot: each rank's place on its host and across the hosts."""
    hosts = [address.rpartition(":")[0] for address in addresses]
    order = list(dict.fromkeys(hosts))
    local_ranks = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    places: list[dict[str, Any]] = []
    for rank, host in enumerate(hosts):
        same_local_rank = [h for h in order if hosts.count(h) > local_ranks[rank]]
        places.append(
            {
                "hostname": host,
                "rank": rank,
                "size": len(hosts),
                "local_rank": local_ranks[rank],
                "local_size": hosts.count(host),
                "cross_rank": same_local_rank.index(host),
                "cross_size": len(same_local_rank),
            }
        )
    return places


def variables(
    spec: WorkerSpec, place: Mapping[str, Any], interfaces: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """The environment by which Horovod's library finds its peers.

    Args:
        spec: this worker.
        place: its entry of `host_assignments`.
        interfaces: addresses of this machine's network interfaces, by name.
    """
    host, _, port = spec.addresses[0].rpartition(":")
    named = {f"HOROVOD_{key.upper()}": str(value) for key, value in place.items()}
    own = next((name for name, found in interfaces.items() if place["hostname"] in found), None)
    if own is not None:
        named["HOROVOD_GLOO_IFACE"] = own
    return {
        **named,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_GLOO_TIMEOUT_SECONDS": _SECONDS_FOR_ALL,
    }


def wait_for(address: str, *, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
    """Return when somebody listens at `address`.

    Raises:
        ClusterError: no process does within two minutes.
    """
    host, _, port = address.rpartition(":")
    end = clock() + _SECONDS_FOR_WORKER_0
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except OSError as error:
            if clock() > end:
                raise ClusterError(
                    f"Worker 0 does not answer at {address} after {_SECONDS_FOR_WORKER_0:.0f} s "
                    f"({error}), so Horovod cannot start. See worker 0's log."
                ) from error
        else:
            return
        sleep(0.1)


def _keep_store(address: str, places: Sequence[Mapping[str, Any]]) -> None:
    """Serve Horovod's rendezvous at `address` for as long as this process lives."""
    http = importlib.import_module("horovod.runner.http.http_server")
    hosts = importlib.import_module("horovod.runner.common.util.hosts")
    host, _, port = address.rpartition(":")
    try:
        server = http.RendezvousHTTPServer((host, int(port)), http.RendezvousHandler, False)
    except OSError as error:
        # In the words of a gRPC server, so that the worker group is restarted with other ports.
        raise ClusterError(
            f"Could not start gRPC server or any other at {address} ({error}). Another program "
            "has the port; restart."
        ) from error
    server.daemon_threads = True
    server.init([hosts.SlotInfo(**place) for place in places])
    threading.Thread(target=server.serve_forever, name="horovod-store", daemon=True).start()


def _interfaces() -> dict[str, list[str]]:
    return {name: [a.address for a in found] for name, found in psutil.net_if_addrs().items()}


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
