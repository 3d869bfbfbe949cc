"""TPU machines: one launcher, on host 0, drives all of them."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.cluster.local_host import LocalHost
from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.cluster.tpu import find_tpu


def detect(
    environment: Mapping[str, str], me: LocalHost | None = None
) -> ClusterEnvironment | None:
    """This launcher alone, on host 0 of a TPU with several hosts.

    Raises:
        ClusterError: this is another of its hosts.
    """
    hosts = [host for host in environment.get("TPU_WORKER_HOSTNAMES", "").split(",") if host]
    if len(hosts) < 2:
        return None
    found = find_tpu(environment, lambda attribute: None)
    if found is None:
        return None
    return ClusterEnvironment(hosts=(hosts[0],), index=0, kind="tpu", why=found.reason)
